"""The report's arithmetic, on logs made by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from perdure.core.records import Checkpoint, Kind, Run, RunState, Worker, WorkerState
from perdure.demo.report import Evidence, Kill, judge
from perdure.demo.sidelog import Mark, What

SECOND = 1_000_000
KILLED, LIVING, NEW = 100, 200, 300
"""Process ids; the workers' row ids are a tenth."""


def a_run(id: int, **changes: object) -> Run:
    run = Run(
        id=id, thread=id, thread_id=f"t{id}", ordinal=1, agent="research", queue="q", deployment="d",
        state=RunState.COMPLETED, reason=None, detail=None, ready=False, ready_at=0, priority=0, worker=None, fence=1,
        attempt=1, recoveries=0, strikes=0, super_step=1, key=None, tenant=None, tags=(), created_at=0, started_at=1,
        ended_at=5 * SECOND,
    )  # fmt: skip
    return msgspec.structs.replace(run, **changes)


def a_record(run: int, key: str, *, pid: int, fence: int, ended_s: float, kind: Kind = Kind.STEP) -> Checkpoint:
    return Checkpoint(
        run=run, super_step=1, key=key, kind=kind, seq=1, fence=fence, worker=pid // 10, attempt=1, digest=0,
        failed=False, payload=b"", state=None, started_at=0, ended_at=int(ended_s * SECOND),
    )  # fmt: skip


def a_worker(pid: int, **changes: object) -> Worker:
    worker = Worker(
        id=pid // 10, name=f"w{pid}", host="h", pid=pid, deployment="d", state=WorkerState.STOPPED, idle=False,
        session=True, started_at=0, lease_until=0, ended_at=None,
    )  # fmt: skip
    return msgspec.structs.replace(worker, **changes)


def marks(*said: tuple[float, int, int, str, What]) -> tuple[Mark, ...]:
    return tuple(Mark(f"r{run}", 1, key, pid, what, at, at) for at, pid, run, key, what in said)


EVIDENCE = Evidence(
    asked=2,
    runs=(a_run(1), a_run(2, recoveries=1, fence=3)),
    records={
        1: (a_record(1, "read#1", pid=LIVING, fence=1, ended_s=1),),
        2: (
            a_record(2, "plan#1", pid=KILLED, fence=1, ended_s=1.5),
            a_record(2, "read#1", pid=NEW, fence=3, ended_s=4.5),
        ),
    },
    workers=(a_worker(KILLED, state=WorkerState.DEAD, ended_at=2_500_000), a_worker(LIVING), a_worker(NEW)),
    marks=marks(
        (0.5, LIVING, 1, "read#1", What.BEGIN),
        (1.0, LIVING, 1, "read#1", What.END),
        (1.2, KILLED, 2, "plan#1", What.BEGIN),
        (1.5, KILLED, 2, "plan#1", What.END),
        (1.6, KILLED, 2, "read#1", What.BEGIN),
        (3.0, NEW, 2, "read#1", What.BEGIN),
        (4.5, NEW, 2, "read#1", What.END),
    ),
    kill=Kill(KILLED, mono=2.0, gone=2.01, store_us=2 * SECOND),
    cited={"r1": 2, "r2": 1},
    files=2,
)
"""Run 2 was at `read#1` when its worker was killed at 2.0 s; the new one began it again at 3.0 s."""


def test_a_body_in_flight_at_the_kill_may_run_twice() -> None:
    report = judge(EVIDENCE)

    assert [promise.text for promise in report.promises if not promise.holds] == []
    assert "executed more than once 1; in flight at the kill 1/1" in " ".join(p.text for p in report.promises)
    assert report.holds


def test_recovery_is_timed_from_the_kill() -> None:
    recovery = judge(EVIDENCE).recovery

    assert (recovery.noticed_s, recovery.running_s, recovery.completed_s) == (0.5, 1.0, 3.0)


def test_a_body_done_but_not_on_disk_at_the_kill_may_run_twice() -> None:
    done = [*EVIDENCE.marks, *marks((1.9, KILLED, 2, "read#1", What.END))]

    report = judge(replace(EVIDENCE, marks=tuple(sorted(done, key=lambda mark: mark.mono))))

    assert report.holds
    assert "(0 running, 1 ended up to 100 ms before it, unrecorded)" in " ".join(p.text for p in report.promises)


def test_a_run_taken_over_was_begun_or_held_by_the_killed_worker() -> None:
    unmarked = replace(EVIDENCE, marks=tuple(mark for mark in EVIDENCE.marks if mark.pid != KILLED))

    assert "runs taken over from the killed worker 1, of which completed 1; 1 were not the killed worker's" in broken(
        unmarked
    )
    held = replace(unmarked, kill=Kill(KILLED, mono=2.0, gone=2.01, store_us=2 * SECOND, held=frozenset({2})))
    assert not any("taken over" in text for text in broken(held))


def test_a_recorded_step_that_ran_again_breaks_the_promise() -> None:
    again = marks((3.1, NEW, 2, "plan#1", What.BEGIN), (3.2, NEW, 2, "plan#1", What.END))

    assert broken(replace(EVIDENCE, marks=tuple(sorted((*EVIDENCE.marks, *again), key=lambda mark: mark.mono)))) == [
        "step bodies executed more than once 2; in flight at the kill 1/2"
    ]


def test_a_body_that_ran_twice_among_the_living_breaks_the_promise() -> None:
    again = marks((6.0, NEW, 1, "read#1", What.BEGIN), (6.1, NEW, 1, "read#1", What.END))

    assert len(broken(replace(EVIDENCE, marks=EVIDENCE.marks + again))) == 1


def test_a_failed_try_is_a_retry_and_no_repetition() -> None:
    failed = marks((0.1, LIVING, 1, "read#1", What.BEGIN), (0.2, LIVING, 1, "read#1", What.FAIL))

    report = judge(replace(EVIDENCE, marks=failed + EVIDENCE.marks))

    assert report.holds
    assert report.retried == 1


def test_an_unanswered_thread_breaks_the_promise() -> None:
    runs = (a_run(1, state=RunState.HELD), EVIDENCE.runs[1])

    assert broken(replace(EVIDENCE, runs=runs)) == ["threads answered 1/2 (others: held)"]


def test_a_missing_file_breaks_the_promise() -> None:
    assert broken(replace(EVIDENCE, files=1)) == ["answers written 1/2, 2 of them with citations"]


def test_a_kill_that_hit_nothing_proves_nothing() -> None:
    runs = (a_run(1), a_run(2))

    assert broken(replace(EVIDENCE, runs=runs)) == ["runs taken over from the killed worker 0, of which completed 0"]


def test_a_record_without_a_body_is_a_disagreement() -> None:
    stray = a_record(1, "write#1", pid=LIVING, fence=1, ended_s=1)

    found = broken(replace(EVIDENCE, records={**EVIDENCE.records, 1: (*EVIDENCE.records[1], stray)}))

    assert found[0].endswith("store and side log disagree: 1 records without a body, 0 bodies without a record")


def test_a_body_of_a_living_process_without_a_record_is_a_disagreement() -> None:
    found = broken(replace(EVIDENCE, records={**EVIDENCE.records, 1: ()}))

    assert found[0].endswith("disagree: 0 records without a body, 1 bodies without a record")


def test_an_old_fence_that_wrote_after_a_new_one_is_seen() -> None:
    late = a_record(2, "plan#1", pid=KILLED, fence=1, ended_s=4.8)

    found = broken(replace(EVIDENCE, records={**EVIDENCE.records, 2: (late, EVIDENCE.records[2][1])}))

    assert found == ["fences out of order in the logs of 1 runs"]


def test_two_workers_under_one_fence_are_seen() -> None:
    twin = a_record(2, "plan#1", pid=KILLED, fence=3, ended_s=1.5)

    found = broken(replace(EVIDENCE, records={**EVIDENCE.records, 2: (twin, EVIDENCE.records[2][1])}))

    assert found == ["fences out of order in the logs of 1 runs"]


def test_without_a_kill_nothing_is_shown() -> None:
    assert broken(replace(EVIDENCE, kill=None))[0].startswith("no worker was killed")
    assert judge(replace(EVIDENCE, kill=None)).recovery.running_s is None


def broken(evidence: Evidence) -> list[str]:
    """The promises that do not hold."""
    return [promise.text for promise in judge(evidence).promises if not promise.holds]
