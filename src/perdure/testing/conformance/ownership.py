"""Scenarios: who is a worker, and who may write."""

from __future__ import annotations

import msgspec

from perdure.core.changes import Change, CommitOutcome
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Claimed, RunState, WorkerState
from perdure.core.requests import NewWorker
from perdure.testing.conformance.harness import (
    LEASE_S,
    Bench,
    Harness,
    again,
    attempt,
    end,
    hold,
    requeue,
    scenario,
    step,
)

LEASE_US = int(LEASE_S * 1_000_000)


class Ownership(Harness):
    """What leases and fences promise."""

    @scenario
    async def test_a_registered_worker_is_alive_under_its_lease(self, bench: Bench) -> None:
        worker = await bench.new_id()
        before = await bench.store.now_us()

        await bench.store.register(NewWorker(worker, "🦉", "host-a", 42, "v7", LEASE_US))

        after = await bench.store.now_us()
        (row,) = await bench.store.workers()
        assert (row.id, row.name, row.host, row.pid, row.deployment) == (worker, "🦉", "host-a", 42, "v7")
        assert (row.state, row.idle, row.session, row.running) == (WorkerState.ALIVE, False, False, 0)
        assert before <= row.started_at <= after and row.ended_at is None
        assert before + LEASE_US <= row.lease_until <= after + LEASE_US

    @scenario
    async def test_registering_may_be_repeated(self, bench: Bench) -> None:
        worker = NewWorker(await bench.new_id(), "w", "h", 1, "v1", LEASE_US)
        await bench.store.register(worker)
        await bench.store.set_idle(worker.id, True)

        await bench.store.register(worker)

        assert [(row.id, row.idle) for row in await bench.store.workers()] == [(worker.id, True)]

    @scenario
    async def test_registering_again_revives_nobody(self, bench: Bench) -> None:
        worker = NewWorker(await bench.new_id(), "w", "h", 1, "v1", LEASE_US)
        await bench.store.register(worker)
        await bench.die(worker.id)

        await bench.store.register(worker)

        assert not await bench.store.renew(worker.id, LEASE_US)
        assert await bench.store.workers() == []

    @scenario
    async def test_workers_are_listed_oldest_first_and_the_ended_ones_on_request(self, bench: Bench) -> None:
        first, second, third = [await bench.worker() for _ in range(3)]
        await bench.store.retire(first)
        await bench.die(second)

        assert [row.id for row in await bench.store.workers()] == [third]
        everyone = await bench.store.workers(alive=False)
        assert [row.id for row in everyone] == [first, second, third]
        assert [row.state for row in everyone] == [WorkerState.STOPPED, WorkerState.DEAD, WorkerState.ALIVE]
        assert [row.ended_at is None for row in everyone] == [False, False, True]

    @scenario
    async def test_renewing_extends_the_lease_from_now(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.advance_s(LEASE_S - 5)

        assert await bench.store.renew(worker, LEASE_US)

        await bench.advance_s(LEASE_S - 5)
        assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []

    @scenario
    async def test_a_late_renewal_counts_as_long_as_nobody_took_over(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.advance_s(LEASE_S + 5)

        assert await bench.store.renew(worker, LEASE_US)

        assert await bench.store.take_over([], recoveries_max=RECOVERIES_MAX) == []
        await bench.commit(worker, step(claimed, "a"))

    @scenario
    async def test_an_expired_lease_alone_stops_nobody(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.advance_s(LEASE_S + 5)

        await bench.commit(worker, step(claimed, "a"))

        assert await bench.steps(claimed.run) == {"a": b"result"}

    @scenario
    async def test_an_unknown_worker_cannot_renew_or_claim_or_write(self, bench: Bench) -> None:
        _, claimed = await bench.begin()
        await bench.start("elsewhere")
        unknown = await bench.new_id()

        assert not await bench.store.renew(unknown, LEASE_US)
        assert await bench.claim(unknown) == []
        assert not (await bench.store.commit(unknown, [step(claimed, "a")])).alive
        assert await bench.steps(claimed.run) == {}

    @scenario
    async def test_an_idle_worker_is_marked(self, bench: Bench) -> None:
        worker = await bench.worker()

        await bench.store.set_idle(worker, True)
        assert (await bench.worker_row(worker)).idle
        await bench.store.set_idle(worker, False)
        assert not (await bench.worker_row(worker)).idle

    # -- who may write ---------------------------------------------------------------------------------------

    @scenario
    async def test_an_old_fence_can_write_nothing(self, bench: Bench) -> None:
        worker, old = await bench.begin("t")
        await bench.commit(worker, requeue(old))
        new = await bench.claim_one(worker)

        for change in self._every_kind(old):
            outcome = await bench.store.commit(worker, [change])
            assert outcome == CommitOutcome(lost=frozenset({old.run})), change
        await self._assert_untouched(bench, new, worker)

    @scenario
    async def test_a_fence_not_yet_given_can_write_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        for change in self._every_kind(msgspec.structs.replace(claimed, fence=claimed.fence + 1)):
            outcome = await bench.store.commit(worker, [change])
            assert outcome == CommitOutcome(lost=frozenset({claimed.run})), change
        await self._assert_untouched(bench, claimed, worker)

    @scenario
    async def test_another_worker_can_write_nothing_even_with_the_right_fence(self, bench: Bench) -> None:
        owner, claimed = await bench.begin("t")
        thief = await bench.worker()

        for change in self._every_kind(claimed):
            outcome = await bench.store.commit(thief, [change])
            assert outcome == CommitOutcome(lost=frozenset({claimed.run})), change
        await self._assert_untouched(bench, claimed, owner)

    @scenario
    async def test_a_lost_run_fails_alone_in_its_batch(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        old, *kept = await bench.claim(worker)
        await bench.commit(worker, requeue(old))
        await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [step(run, "a") for run in (kept[0], old, kept[1])])

        assert outcome == CommitOutcome(lost=frozenset({old.run}))
        assert [await bench.steps(run.run) for run in (old, *kept)] == [{}, {"a": b"result"}, {"a": b"result"}]

    @scenario
    async def test_a_change_of_an_unknown_run_is_lost(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        unknown = msgspec.structs.replace(claimed, run=10**15)

        outcome = await bench.store.commit(worker, [step(unknown, "a"), step(claimed, "a")])

        assert outcome == CommitOutcome(lost=frozenset({10**15}))
        assert await bench.steps(claimed.run) == {"a": b"result"}

    @scenario
    async def test_a_dead_worker_can_write_nothing(self, bench: Bench) -> None:
        dead, old = await bench.begin("t")
        await bench.die(dead)

        for change in self._every_kind(old):
            assert not (await bench.store.commit(dead, [change])).alive

        worker = await bench.worker()
        new = await bench.claim_one(worker)
        for change in self._every_kind(old):
            assert not (await bench.store.commit(dead, [change])).alive
        await self._assert_untouched(bench, new, worker)

    @scenario
    async def test_a_retired_worker_can_write_nothing(self, bench: Bench) -> None:
        retired, old = await bench.begin("t")
        await bench.store.retire(retired)

        for change in self._every_kind(old):
            assert not (await bench.store.commit(retired, [change])).alive

        worker = await bench.worker()
        await self._assert_untouched(bench, await bench.claim_one(worker), worker)

    @scenario
    async def test_a_dead_or_retired_worker_claims_nothing_and_cannot_renew(self, bench: Bench) -> None:
        dead, retired = await bench.worker(), await bench.worker()
        await bench.die(dead)
        await bench.store.retire(retired)
        await bench.start()

        assert await bench.claim(dead) == [] == await bench.claim(retired)
        assert not await bench.store.renew(dead, LEASE_US)
        assert not await bench.store.renew(retired, LEASE_US)

    def _every_kind(self, claimed: Claimed) -> list[Change]:
        return [
            step(claimed, "new"),
            attempt(claimed, "new"),
            again(claimed, 2, state=b"state"),
            end(claimed, state=b"state"),
            requeue(claimed),
            hold(claimed),
        ]

    async def _assert_untouched(self, bench: Bench, claimed: Claimed, worker: int) -> None:
        run, thread = await bench.run(claimed.run), await bench.thread(claimed.thread_id)
        assert (run.state, run.worker, run.fence) == (RunState.RUNNING, worker, claimed.fence)
        assert (run.super_step, run.reason, thread.head, thread.snapshot_run) == (1, None, claimed.run, None)
        assert len(await bench.log(claimed.run)) == 1 and await bench.store.attempts(claimed.run) == []
