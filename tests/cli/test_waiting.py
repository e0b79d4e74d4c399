"""Why a run does not go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.cli.awaiting import Around, sentence
from perdure.cli.waiting import Why, why
from perdure.core.limits import NEVER_US
from perdure.core.records import HeldReason, Run, RunState, Wait, WaitKind, Worker
from perdure.runtime.awaited import _words
from tests.cli.rows import NOW, SECOND, question, run, wait, worker


def asked(
    subject: Run, *, head: Run | None = None, workers: Sequence[Worker] = (), waits: Sequence[Wait] = (),
    around: Around | None = None,
) -> Why:  # fmt: skip
    answer = why(subject, head=head, workers=workers, now_us=NOW, waits=waits, around=around)
    assert answer is not None
    return answer


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
def test_a_run_that_ended_waits_for_nothing(state: RunState) -> None:
    assert why(run(state=state), head=None, workers=(), now_us=NOW) is None


def test_a_run_on_a_live_worker_waits_for_nothing() -> None:
    running = run(state=RunState.RUNNING, worker=5)

    assert why(running, head=None, workers=[worker()], now_us=NOW) is None


def test_a_run_whose_worker_is_silent_waits_to_be_taken_over() -> None:
    running = run(state=RunState.RUNNING, worker=5)
    late = worker(lease_until=NOW - 4 * SECOND)

    alone = asked(running, workers=[late])
    helped = asked(running, workers=[late, worker(id=6)])

    assert "the lease of w5 ran out 4 s ago" in alone.what and "no other is alive" in alone.what
    assert alone.remedy is not None and "perdure worker" in alone.remedy
    assert helped.short == "to be taken over"


def test_a_worker_without_a_sign_of_life_counts_as_gone_before_its_lease_ends() -> None:
    running = run(state=RunState.RUNNING, worker=5)

    answer = why(running, head=None, workers=[worker()], now_us=NOW, silent={5})
    queued = why(run(), head=None, workers=[worker()], now_us=NOW, silent={5})

    assert answer is not None and "w5 shows no sign of life" in answer.what
    assert queued is not None and queued.short == "no worker is alive"


def test_a_run_whose_worker_has_no_row_any_more_says_so() -> None:
    answer = asked(run(state=RunState.RUNNING, worker=5), workers=[worker(id=6)])

    assert "its worker is gone" in answer.what


def test_a_queued_run_names_the_run_before_it() -> None:
    answer = asked(run(ready=False), head=run(id=9, state=RunState.RUNNING))

    assert "r9" in answer.what and "running" in answer.what


def test_a_run_behind_a_held_one_says_so_and_where_to_look() -> None:
    answer = asked(run(ready=False), head=run(id=9, state=RunState.HELD, reason="poison"))

    assert "r9" in answer.what and "poison" in answer.what
    assert answer.remedy == "`perdure runs show r9`"


def test_a_run_that_is_not_due_says_when_it_is() -> None:
    answer = asked(run(ready_at=NOW + 90 * SECOND), workers=[worker()])

    assert "not due for 1 min 30 s" in answer.what


def test_without_a_live_worker_the_remedy_is_to_start_one() -> None:
    answer = asked(run(), workers=[worker(lease_until=NOW - 1)])

    assert "none is alive" in answer.what
    assert answer.remedy is not None and "agent research on queue default" in answer.remedy


def test_a_pinned_run_names_the_deployment_that_nobody_serves() -> None:
    answer = asked(run(deployment="green"), workers=[worker()])

    assert "green" in answer.what
    assert answer.remedy is not None and "--deployment green" in answer.remedy


def test_idle_workers_that_do_not_take_a_due_run_do_not_serve_it() -> None:
    answer = asked(run(queue="gpu"), workers=[worker()])

    assert "not taking it" in answer.what
    assert answer.remedy is not None and "--queue gpu" in answer.remedy


def test_a_run_that_has_just_become_due_is_given_time_to_be_claimed() -> None:
    answer = asked(run(ready_at=NOW - SECOND), workers=[worker()])

    assert answer.short == "about to be claimed" and answer.remedy is None


def test_a_run_before_busy_workers_waits_for_a_slot() -> None:
    answer = asked(run(), workers=[worker(idle=False, running=40)])

    assert answer == Why("waits for a slot", "a free slot: 1 worker alive with 40 runs in hand")


@pytest.mark.parametrize("reason", list(HeldReason))
def test_a_held_run_shows_reason_detail_and_the_command_that_sends_it_on(reason: HeldReason) -> None:
    answer = asked(run(state=RunState.HELD, reason=reason.value, detail="it\nexploded"))

    assert reason.value in answer.what and "it\\nexploded" in answer.what
    assert answer.remedy is not None and "perdure release r12" in answer.remedy


def test_every_state_has_an_answer() -> None:
    changes: dict[str, Any] = {"worker": 5}
    for state in RunState:
        why(run(state=state, **changes), head=None, workers=(), now_us=NOW)


# -- parked runs -----------------------------------------------------------------------------------------------------

PARKED = run(state=RunState.WAITING, ready_at=NEVER_US)


def test_a_run_behind_one_that_waits_says_so_and_where_to_look() -> None:
    answer = asked(run(ready=False), head=run(id=9, state=RunState.WAITING))

    assert answer.short == "behind r9, waiting"
    assert answer.remedy == "`perdure runs show r9` says for what"


@pytest.mark.parametrize(
    ("waits", "short", "what", "remedy"),
    [
        (
            [wait("a", WaitKind.ANSWER, target=42)],
            "answer to i42: ?",
            "an answer to i42 from alice (?)",
            "answer it: `perdure interrupts show i42` says how",
        ),
        (
            [wait("a", WaitKind.MESSAGE, labels=("Order", "str"), due_at=NOW + 90 * SECOND)],
            "message Order|str",
            "a message (Order or str), for 1 min 30 s at most",
            "send one: `perdure messages send topics/7 JSON --label Order`",
        ),
        ([wait("a")], "message", "a message", "send one: `perdure messages send topics/7 JSON`"),
        (
            [wait("a", WaitKind.RUN, target=9)],
            "run r9",
            "run r9 (held: poison)",
            "look at that one: `perdure runs show r9`",
        ),
        ([wait("a", WaitKind.ROOM, target=4)], "room in a mailbox", "room in the mailbox of thread 'full'", None),
    ],
)
def test_a_parked_run_says_what_it_waits_for_and_what_ends_that(
    waits: list[Wait], short: str, what: str, remedy: str | None
) -> None:
    around = Around(
        {42: question("a", assignee="alice")}, {9: run(id=9, state=RunState.HELD, reason="poison")}, {4: "full"}
    )

    assert asked(PARKED, waits=waits, around=around) == Why(short, what, remedy)


def test_a_timer_says_when_it_is_over_and_a_retry_whose_it_is() -> None:
    sleep = asked(PARKED, waits=[wait("sleep", WaitKind.TIMER, due_at=NOW + 7_200 * SECOND)])
    retry = asked(PARKED, waits=[wait("1/fetch~2", WaitKind.TIMER, due_at=NOW + 60 * SECOND)])
    limit = asked(PARKED, waits=[wait("timeout#2", WaitKind.TIMER, due_at=NOW + 60 * SECOND)])

    assert sleep.short == "due in 2 h 00 min" and sleep.what.startswith("its time, in 2 h 00 min (")
    assert sleep.remedy is None
    assert retry.what.startswith("another try of 1/fetch, in 1 min 00 s")
    assert limit.what.startswith("the end of a time limit, in 1 min 00 s")


def test_several_waits_are_named_up_to_three_and_a_question_comes_first_among_the_remedies() -> None:
    waits = [wait("a"), wait("b", WaitKind.ANSWER, target=42), wait("c"), wait("d")]

    answer = asked(PARKED, waits=waits)

    assert answer.what == "a message, an answer to i42, a message and 1 more"
    assert answer.remedy is not None and "i42" in answer.remedy
    assert asked(PARKED, waits=waits[:2]).what == "a message and an answer to i42"


def test_a_parked_run_whose_time_has_come_waits_for_a_worker() -> None:
    answer = asked(run(state=RunState.WAITING, ready_at=NOW - SECOND), waits=[wait("sleep", WaitKind.TIMER)])

    assert answer.short == "no worker is alive"


def test_what_is_over_its_time_has_not_come() -> None:
    over = wait("a", WaitKind.ANSWER, target=54, ready=True, due=True)
    slept = wait("b", WaitKind.TIMER, ready=True, due=True, due_at=NOW)
    came = wait("c", WaitKind.ANSWER, target=54, ready=True)

    said = [sentence(each, Around(), now_us=NOW) for each in (over, slept, came)]

    assert _words(over, {}, {}) == said[0], "as `RunInfo.waiting_for` has it"
    assert said == [
        "an answer to i54, whose time is over",
        "its time, which has come",
        "an answer to i54, which has come",
    ]
