"""Scenarios: runs that a run starts, and what becomes of them and of it."""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.changes import Change
from perdure.core.records import Claimed, RunState, WaitKind
from perdure.core.requests import Parent, ParentGone, RunFilter, Started
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    cancelled,
    close,
    end,
    fail,
    hold,
    parent,
    park,
    requeue,
    scenario,
    wait,
)

ENDINGS: dict[str, Callable[[Claimed], Change]] = {
    "completed": end,
    "failed": fail,
    "cancelled": cancelled,
    "held": hold,
}


class Parenting(Harness):
    """What `StartRun.parent` promises, and what goes down the tree and up again."""

    @scenario
    async def test_a_child_knows_its_parent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")

        child = await bench.start("c", parent=parent(claimed, worker))
        loose = await bench.start("d", parent=parent(claimed, worker, detached=True))
        alone = await bench.start("e")

        rows = await bench.store.get_runs([child, loose, alone])
        told = [(row.parent, row.detached) for row in rows]
        assert told == [(claimed.run, False), (claimed.run, True), (None, False)]
        listed = await bench.store.list_runs(RunFilter(parent=claimed.run))
        assert [run.id for run in listed] == [loose, child]
        assert await bench.store.list_runs(RunFilter(parent=child)) == []

    @scenario
    async def test_a_child_is_started_only_by_who_owns_the_parent(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, requeue(first))
        queued = parent(first, worker)
        assert await bench.try_start("c", parent=queued) == ParentGone(first.run, False)
        second = await bench.claim_one(worker)
        thief = await bench.worker()

        for stale in (queued, parent(second, thief), Parent(10**15, 1, worker)):
            assert await bench.try_start("c", parent=stale) == ParentGone(stale.run, False)

        assert await bench.store.get_thread("c") is None
        await bench.start("c", parent=parent(second, worker))

    @scenario
    async def test_a_dead_worker_starts_no_child(self, bench: Bench) -> None:
        dead, one = await bench.begin("one")
        retired, two = await bench.begin("two")
        await bench.die(dead)
        await bench.store.retire(retired)

        for gone in (parent(one, dead), parent(two, retired)):
            assert await bench.try_start("c", parent=gone) == ParentGone(gone.run, False)

        assert await bench.store.get_thread("c") is None

    @scenario
    async def test_a_parent_that_is_not_running_starts_no_child(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        parked, ended, held = await bench.claim(worker)
        await bench.commit(worker, wait(parked, delay_s=60), park(parked), end(ended), hold(held))

        for each in (parked, ended, held):
            assert await bench.try_start("c", parent=parent(each, worker)) == ParentGone(each.run, False)

    @scenario
    async def test_a_child_that_was_started_is_started_whatever_became_of_its_parent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        ask = await bench.ask("c", parent=parent(claimed, worker))
        await bench.store.start([ask])
        await bench.die(worker)

        assert await bench.store.start([ask]) == [Started(ask.id, "c", True)]

    @scenario
    async def test_a_parent_that_is_gone_starts_nothing_under_a_known_key_either(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        known = await bench.start("c", key="k")
        assert await bench.try_start("c", key="k", parent=parent(claimed, worker)) == Started(known, "c", False)
        await bench.commit(worker, requeue(claimed))

        assert await bench.try_start("c", key="k", parent=parent(claimed, worker)) == ParentGone(claimed.run, False)

    @scenario
    async def test_each_start_of_a_group_is_answered_by_its_own_parent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        gone = await bench.begin("u")
        await bench.commit(gone[0], end(gone[1]))
        parents = [parent(claimed, worker), parent(gone[1], gone[0]), None, parent(claimed, worker)]
        asked = [await bench.ask(f"c{n}", parent=each) for n, each in enumerate(parents)]

        outcomes = await bench.store.start(asked)

        started = [Started(ask.id, ask.thread_id, True) for ask in asked]
        assert outcomes == [started[0], ParentGone(gone[1].run, False), *started[2:]]

    @scenario
    async def test_a_parent_to_be_cancelled_starts_a_child_only_if_it_knows(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)

        assert await bench.try_start("c", parent=parent(claimed, worker)) == ParentGone(claimed.run, True)
        assert await bench.store.get_thread("c") is None

        child = await bench.start("c", parent=parent(claimed, worker, cancelled=True))
        row = await bench.run(child)
        assert (row.parent, row.cancel, row.state) == (claimed.run, None, RunState.QUEUED)

    # -- up --------------------------------------------------------------------------------------------------

    @scenario
    async def test_every_ending_of_a_child_reaches_the_parent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        names = (*ENDINGS, "poison", "at once")
        children = [await bench.start(name, agent=name, parent=parent(claimed, worker)) for name in names]
        opened = [wait(claimed, name, WaitKind.RUN, target=child) for name, child in zip(names, children, strict=True)]
        await bench.commit(worker, *opened, park(claimed))
        other, frail = await bench.worker(), await bench.worker()

        for n, name in enumerate(names):
            if name == "at once":
                await bench.cancel(children[n])
            elif name == "poison":
                await bench.claim_one(frail, agents=(name,))
                await bench.die(frail, recoveries_max=1)
            else:
                child = await bench.claim_one(other, agents=(name,))
                await bench.commit(other, ENDINGS[name](child))

            claimed = await bench.claim_one(worker)
            assert [row.key for row in claimed.waits if row.ready] == [name]
            last = [park(claimed)] if name != names[-1] else []
            await bench.commit(worker, close(claimed, name, record={"seq": n}), *last)

    @scenario
    async def test_many_children_wake_one_parent_at_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        asked = [await bench.ask(f"c{n}", agent="child", parent=parent(claimed, worker)) for n in range(100)]
        await bench.store.start(asked)
        opened = [wait(claimed, f"w{n:03}", WaitKind.RUN, target=ask.id) for n, ask in enumerate(asked)]
        await bench.commit(worker, *opened, park(claimed))
        other = await bench.worker()

        await bench.commit(other, *(end(each) for each in await bench.claim(other, agents=("child",))))

        second = await bench.claim_one(worker)
        assert [row.ready for row in second.waits] == [True] * 100
