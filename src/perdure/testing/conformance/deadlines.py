"""Scenarios: runs that are to have ended by a time."""

from __future__ import annotations

from perdure.core.records import RunState, WaitKind
from perdure.testing.conformance.harness import Bench, Harness, close, end, fail, park, requeue, scenario, wait

MINUTE_US = 60_000_000


class Deadlines(Harness):
    """What a deadline promises: the run is claimable from then on, to be failed by its worker."""

    @scenario
    async def test_a_deadline_is_kept_as_a_time_on_the_stores_clock(self, bench: Bench) -> None:
        noon = await bench.store.now_us() + 3 * MINUTE_US
        starts = {
            "none": {},
            "span": {"deadline_us": MINUTE_US},
            "time": {"deadline_at": noon},
            "span first": {"deadline_at": noon, "deadline_us": MINUTE_US},
            "time first": {"deadline_at": noon, "deadline_us": 9 * MINUTE_US},
        }

        runs = {name: await bench.run(await bench.start(name, **fields)) for name, fields in starts.items()}

        assert runs["none"].deadline_at is None
        assert runs["span"].deadline_at == runs["span"].created_at + MINUTE_US
        assert (runs["time"].deadline_at, runs["time first"].deadline_at) == (noon, noon)
        assert runs["span first"].deadline_at == runs["span first"].created_at + MINUTE_US
        claims = {each.thread_id: each.deadline_at for each in await bench.claim(await bench.worker())}
        assert claims == {name: run.deadline_at for name, run in runs.items()}

    @scenario
    async def test_a_delayed_run_is_claimable_from_its_deadline_on(self, bench: Bench) -> None:
        worker = await bench.worker()
        run = await bench.start("t", delay_us=10 * MINUTE_US, deadline_us=MINUTE_US)
        later = await bench.start("u", delay_us=MINUTE_US, deadline_us=10 * MINUTE_US)
        row, other = await bench.run(run), await bench.run(later)
        assert (row.ready_at, other.ready_at) == (row.deadline_at, other.created_at + MINUTE_US)

        assert await bench.claim(worker) == []
        await bench.advance_s(61)

        assert {each.run for each in await bench.claim(worker)} == {run, later}

    @scenario
    async def test_a_run_given_back_with_a_delay_is_claimable_from_its_deadline_on(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", deadline_us=MINUTE_US)

        await bench.commit(worker, requeue(claimed, delay_s=600))

        run = await bench.run(claimed.run)
        assert run.ready_at == run.deadline_at and await bench.claim(worker) == []
        await bench.advance_s(61)
        assert (await bench.claim_one(worker)).deadline_at is not None

    @scenario
    async def test_a_parked_run_is_claimed_at_its_deadline_to_be_failed(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE), deadline_us=MINUTE_US)
        await bench.advance_s(50)
        assert await bench.claim(worker) == []
        await bench.advance_s(11)

        second = await bench.claim_one(worker)
        await bench.commit(worker, fail(second, b"too late", waited=True))

        assert [(row.ready, row.due) for row in second.waits] == [(False, False)]
        assert second.deadline_at is not None and second.deadline_at <= second.now
        assert await bench.state(claimed.run) is RunState.FAILED

    @scenario
    async def test_a_deadline_alone_ends_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", deadline_us=MINUTE_US)
        behind = await bench.start("t", deadline_us=MINUTE_US)
        await bench.advance_s(61)

        assert await bench.claim(worker) == []
        await bench.commit(worker, end(claimed))

        assert await bench.state(claimed.run) is RunState.COMPLETED
        assert (await bench.claim_one(worker)).run == behind

    @scenario
    async def test_the_next_due_time_may_be_a_deadline(self, bench: Bench) -> None:
        await bench.parked("t", wait(delay_s=600), deadline_us=MINUTE_US)

        due = await bench.store.next_due()

        assert due is not None and 0 < due <= MINUTE_US

    @scenario
    async def test_a_woken_run_keeps_its_deadline(self, bench: Bench) -> None:
        worker, claimed = await bench.parked("t", wait(kind=WaitKind.MESSAGE), deadline_us=10 * MINUTE_US)
        deadline_at = (await bench.run(claimed.run)).deadline_at
        await bench.send("t")

        second = await bench.claim_one(worker)
        opening = wait(second, "v", WaitKind.MESSAGE, labels=("x",))
        await bench.commit(worker, close(second, "w"), opening, park(second))

        assert second.deadline_at == deadline_at == (await bench.run(claimed.run)).ready_at
