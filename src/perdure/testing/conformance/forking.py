"""Scenarios: runs on new threads that go on from a checkpoint of another."""

from __future__ import annotations

import msgspec

from perdure.core.records import Checkpoint, Claimed, IfBusy, Kind, RunState
from perdure.core.requests import ForkRun, OtherAgent, Started, ThreadHeld
from perdure.testing.conformance.harness import Bench, Harness, again, blob, cancelled, end, scenario, step


class Forking(Harness):
    """What `fork` promises."""

    @scenario
    async def test_a_fork_goes_on_from_a_checkpoint_with_its_records(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)
        fork = await _fork(bench, claimed, payload=b"edited")

        assert await bench.store.fork(fork) == Started(fork.start.id, "fork", True)

        run, thread = await bench.run(fork.start.id), await bench.thread("fork")
        assert (run.state, run.ready, run.ordinal, run.super_step) == (RunState.QUEUED, True, 1, 2)
        assert (run.attempt, run.fence, run.worker, run.agent) == (0, 0, None, "agent")
        assert (thread.head, thread.depth, thread.last_ordinal) == (run.id, 1, 1)
        assert (thread.snapshot_run, thread.snapshot_step, thread.agent) == (run.id, 2, "agent")
        second = await bench.claim_one(worker, agents=("agent",))
        assert (second.run, second.super_step, second.arguments, second.state) == (run.id, 2, b"edited", b"s2")
        assert second.records == tuple(msgspec.structs.replace(row, run=run.id) for row in await _of(bench, 2))

    @scenario
    async def test_a_fork_ends_on_its_own(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)
        fork = await _fork(bench, claimed)
        await bench.store.fork(fork)
        second = await bench.claim_one(worker)

        await bench.commit(worker, step(second, "c", b"new", seq=9), again(second, 3, state=b"other"))
        await bench.commit(worker, end(second, super_step=4, state=b"last"))

        assert [(row.super_step, row.key) for row in await bench.log(second.run)] == [
            (2, ""),
            (2, "a"),
            (2, "b"),
            (2, "c"),
            (3, ""),
            (4, ""),
        ]
        await bench.start("fork")
        assert (await bench.claim_one(worker)).state == b"last"

    @scenario
    async def test_a_fork_leaves_the_original_alone(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)
        before = await _picture(bench, claimed)
        fork = await _fork(bench, claimed)

        await bench.store.fork(fork)
        second = await bench.claim_one(worker)
        await bench.commit(worker, step(second, "c", seq=9), end(second, state=b"other"))

        assert await _picture(bench, claimed) == before
        await bench.commit(worker, end(claimed, super_step=4))

    @scenario
    async def test_a_fork_asked_for_again_is_the_same(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)
        fork = await _fork(bench, claimed)
        started = await bench.store.fork(fork)
        log = await bench.log(fork.start.id)

        assert await bench.store.fork(fork) == started
        assert await bench.log(fork.start.id) == log

        await bench.commit(worker, end(await bench.claim_one(worker)))
        assert await bench.store.fork(fork) == started
        assert await bench.state(fork.start.id) is RunState.COMPLETED

    @scenario
    async def test_a_fork_wants_a_thread_of_its_own(self, bench: Bench) -> None:
        _, claimed = await _three_steps(bench)
        await bench.start("fork")
        await bench.start("other", agent="b")
        log = await bench.store.list_threads()

        outcome = await bench.store.fork(await _fork(bench, claimed))
        assert isinstance(outcome, ThreadHeld)
        assert await bench.store.fork(await _fork(bench, claimed, thread_id="other")) == OtherAgent("b")

        assert await bench.store.list_threads() == log

    @scenario
    async def test_a_fork_of_the_first_super_step_has_the_state_it_is_given(self, bench: Bench) -> None:
        worker, _ = await _three_steps(bench)
        start = await bench.ask("fork", payload=b"in")

        await bench.store.fork(ForkRun(start=start, super_step=1, state=b"edited", records=()))

        thread = await bench.thread("fork")
        assert (thread.snapshot_run, thread.snapshot_step) == (start.id, 1)
        second = await bench.claim_one(worker)
        assert (second.super_step, second.arguments, second.state, second.records) == (1, b"in", b"edited", ())

    @scenario
    async def test_a_fork_without_a_state_has_none(self, bench: Bench) -> None:
        worker, _ = await _three_steps(bench)
        start = await bench.ask("fork", payload=b"in")

        await bench.store.fork(ForkRun(start=start, super_step=3, state=None, records=()))

        thread = await bench.thread("fork")
        assert (thread.snapshot_run, thread.snapshot_step) == (None, None)
        second = await bench.claim_one(worker)
        assert (second.super_step, second.arguments, second.state) == (3, b"in", None)

    @scenario
    async def test_a_fork_that_is_rolled_back_leaves_the_state_it_was_given(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)
        fork = await _fork(bench, claimed)
        await bench.store.fork(fork)
        second = await bench.claim_one(worker)
        await bench.commit(worker, again(second, 3, state=b"its own"))
        new = await bench.start("fork", if_busy=IfBusy.ROLLBACK)

        await bench.store.commit(worker, [cancelled(second, super_step=4)])

        third = await bench.claim_one(worker)
        assert (third.run, third.state) == (new, b"s2")

    @scenario
    async def test_a_fork_brings_its_blobs_and_its_fields(self, bench: Bench) -> None:
        _, claimed = await _three_steps(bench)
        large = blob(b"large" * 10_000)
        fork = await _fork(
            bench, claimed, blobs=(large,), priority=4, tenant="acme", tags=("x",), delay_us=60_000_000, queue="slow"
        )

        await bench.store.fork(fork)

        run = await bench.run(fork.start.id)
        assert (run.priority, run.tenant, run.tags, run.queue) == (4, "acme", ("x",), "slow")
        assert run.ready_at == run.created_at + 60_000_000
        assert await bench.store.blobs(run.thread, [large.digest]) == {large.digest: large.data}
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {}

    @scenario
    async def test_an_idle_worker_is_hinted_at_a_fork_by_what_it_can_claim(self, bench: Bench) -> None:
        worker, claimed = await _three_steps(bench)

        await bench.store.fork(await _fork(bench, claimed))
        queued = await bench.start("fork")

        assert await bench.try_start("fork", if_busy=IfBusy.JOIN) != Started(queued, "fork", False)
        first = await bench.claim_one(worker)
        await bench.commit(worker, end(first))
        assert (await bench.claim_one(worker)).run == queued


async def _three_steps(bench: Bench) -> tuple[int, Claimed]:
    """A run in its third super-step, which has recorded two steps in each before it."""
    worker, claimed = await bench.begin("t", payload=b"first")
    await bench.commit(worker, step(claimed, "a", b"1a"), step(claimed, "b", b"1b", seq=2))
    await bench.commit(worker, again(claimed, 2, b"second", state=b"s2"))
    await bench.commit(
        worker,
        step(claimed, "a", b"2a", super_step=2, attempt=2, digest=-5),
        step(claimed, "b", b"2b", super_step=2, seq=2, failed=True),
    )
    await bench.commit(worker, again(claimed, 3, b"third", state=b"s3"))
    return worker, claimed


async def _of(bench: Bench, super_step: int) -> list[Checkpoint]:
    """The records of a super-step of that run."""
    (run,) = [each for each in await bench.store.list_threads() if each.thread_id == "t"]
    assert run.head is not None
    return [row for row in await bench.log(run.head) if row.super_step == super_step and row.kind is Kind.STEP]


async def _fork(bench: Bench, claimed: Claimed, thread_id: str = "fork", **fields: object) -> ForkRun:
    """A fork at that run's second super-step, with the records of it."""
    start = await bench.ask(thread_id, **({"payload": b"second"} | fields))
    records = [msgspec.structs.replace(row, run=start.id) for row in await _of(bench, 2)]
    return ForkRun(start=start, super_step=2, state=b"s2", records=tuple(records))


async def _picture(bench: Bench, claimed: Claimed) -> object:
    return await bench.run(claimed.run), await bench.thread(claimed.thread_id), await bench.log(claimed.run)
