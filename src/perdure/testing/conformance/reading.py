"""Scenarios: listings and hints."""

from __future__ import annotations

from perdure.core.limits import CLAIM_ROWS_MAX, LIST_ROWS_MAX
from perdure.core.records import Kind, Outcome, RunState
from perdure.core.requests import RunFilter
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    attempt,
    end,
    fail,
    hints,
    hold,
    in_threads,
    requeue,
    scenario,
    step,
)


class Reading(Harness):
    """What the listings promise."""

    @scenario
    async def test_what_is_not_there_is_left_out(self, bench: Bench) -> None:
        run = await bench.start("t")
        thread = await bench.thread("t")

        assert await bench.store.get_runs([]) == []
        assert [found.id for found in await bench.store.get_runs([10**15, run])] == [run]
        assert await bench.store.outcomes([10**15, run]) == []
        assert await bench.store.get_thread("nobody") is None
        assert await bench.store.checkpoints(10**15) == []
        assert await bench.store.attempts(10**15) == []
        assert await bench.store.thread_checkpoints(10**15) == []
        assert await bench.store.blobs(thread.id, [b"unknown"]) == {}

    @scenario
    async def test_runs_are_found_by_id_in_the_order_of_their_ids(self, bench: Bench) -> None:
        runs = await bench.start_many(5)

        found = await bench.store.get_runs([runs[3], runs[0], runs[3], runs[4]])

        assert [run.id for run in found] == [runs[0], runs[3], runs[4]]

    @scenario
    async def test_a_large_group_is_started_claimed_watched_and_read_at_once(self, bench: Bench) -> None:
        worker = await bench.worker()
        runs = await bench.start_many(CLAIM_ROWS_MAX)

        claimed = await bench.claim(worker, limit=CLAIM_ROWS_MAX)
        await bench.store.watch(runs)
        await bench.commit(worker, *(end(each) for each in claimed))

        assert len(claimed) == CLAIM_ROWS_MAX
        assert [run.id for run in await bench.store.get_runs(runs)] == runs
        assert {outcome.run for outcome in await bench.store.outcomes(runs)} == set(runs)

    @scenario
    async def test_runs_are_listed_newest_first_in_pages(self, bench: Bench) -> None:
        runs = await bench.start_many(7)

        first = await bench.store.list_runs(RunFilter(limit=3))
        second = await bench.store.list_runs(RunFilter(limit=3, after=first[-1].id))
        third = await bench.store.list_runs(RunFilter(limit=3, after=second[-1].id))

        assert [len(page) for page in (first, second, third)] == [3, 3, 1]
        assert [run.id for run in first + second + third] == sorted(runs, reverse=True)
        assert await bench.store.list_runs(RunFilter(after=third[-1].id)) == []
        assert await bench.store.get_runs(runs) == sorted(first + second + third, key=lambda run: run.id)

    @scenario
    async def test_runs_are_listed_by_each_of_their_marks(self, bench: Bench) -> None:
        a = await bench.start("t1", agent="x", tenant="acme", tags=("red", "blue"))
        b = await bench.start("t2", agent="y", tenant="acme", tags=("red",))
        c = await bench.start("t1", agent="x", tags=("blue", "re", "d"))
        worker = await bench.worker()
        await bench.claim_one(worker, agents=("y",))

        async def listed(where: RunFilter) -> set[int]:
            return {run.id for run in await bench.store.list_runs(where)}

        assert await listed(RunFilter()) == {a, b, c}
        assert await listed(RunFilter(state=RunState.RUNNING)) == {b}
        assert await listed(RunFilter(state=RunState.QUEUED)) == {a, c}
        assert await listed(RunFilter(agent="x")) == {a, c}
        assert await listed(RunFilter(thread_id="t2")) == {b}
        assert await listed(RunFilter(tenant="acme")) == {a, b}
        assert await listed(RunFilter(tags=("red",))) == {a, b}
        assert await listed(RunFilter(tags=("blue", "red"))) == {a}
        assert await listed(RunFilter(agent="x", tenant="acme", state=RunState.QUEUED, tags=("red",))) == {a}
        assert await listed(RunFilter(thread_id="unknown")) == set()
        assert await listed(RunFilter(agent="x", limit=1, after=c)) == {a}

    @scenario
    async def test_threads_are_listed_newest_first_in_pages(self, bench: Bench) -> None:
        for n in range(5):
            await bench.start(f"t{n}", agent="even" if n % 2 == 0 else "odd")

        everyone = await bench.store.list_threads()
        first = await bench.store.list_threads(limit=2)
        rest = await bench.store.list_threads(limit=9, after=first[-1].id)

        assert [thread.id for thread in everyone] == sorted((thread.id for thread in everyone), reverse=True)
        assert {thread.thread_id for thread in everyone} == {f"t{n}" for n in range(5)}
        assert first + rest == everyone
        assert everyone[0] == await bench.thread(everyone[0].thread_id)
        even = await bench.store.list_threads(agent="even")
        assert {thread.thread_id for thread in even} == {"t0", "t2", "t4"}

    @scenario
    async def test_a_runs_log_is_read_in_order_and_in_pages(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, step(claimed, "b", seq=2), step(claimed, "a", seq=1), step(claimed, "c", seq=3))
        await bench.commit(worker, again(claimed, 2), step(claimed, "d", super_step=2, seq=4))
        await bench.commit(worker, end(claimed, super_step=3))

        log = await bench.log(claimed.run)

        assert [(row.super_step, row.key) for row in log] == [
            (1, ""),
            (1, "a"),
            (1, "b"),
            (1, "c"),
            (2, ""),
            (2, "d"),
            (3, ""),
        ]
        paged = await bench.store.checkpoints(claimed.run, limit=3)
        while page := await bench.store.checkpoints(claimed.run, limit=3, after=(paged[-1].super_step, paged[-1].seq)):
            paged += page
        assert paged == log
        assert await bench.store.checkpoints(claimed.run, super_step=2) == log[4:6]
        assert await bench.store.checkpoints(claimed.run, super_step=1, limit=2, after=(1, 1)) == log[2:4]
        boundaries = await bench.store.checkpoints(claimed.run, boundaries=True)
        assert boundaries == [log[0], log[4], log[6]]
        last = boundaries[1]
        assert (
            await bench.store.checkpoints(claimed.run, boundaries=True, after=(last.super_step, last.seq))
            == boundaries[2:]
        )

    @scenario
    async def test_a_threads_checkpoints_are_listed_newest_first_over_its_runs(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(
            worker, step(first, "a"), again(first, 2, state=b"s2"), end(first, super_step=3, state=b"s3")
        )
        await bench.start("t")
        second = await bench.claim_one(worker)
        await bench.commit(worker, again(second, 2), fail(second, super_step=3))
        await bench.start("elsewhere")

        rows = await bench.store.thread_checkpoints(first.thread)

        assert [(row.run, row.super_step, row.kind) for row in rows] == [
            (second.run, 3, Kind.ENDED),
            (second.run, 2, Kind.BOUNDARY),
            (second.run, 1, Kind.BOUNDARY),
            (first.run, 3, Kind.ENDED),
            (first.run, 2, Kind.BOUNDARY),
            (first.run, 1, Kind.BOUNDARY),
        ]
        assert [row.state for row in rows[3:]] == [b"s3", b"s2", None]
        paged = await bench.store.thread_checkpoints(first.thread, limit=4)
        paged += await bench.store.thread_checkpoints(
            first.thread, limit=4, after=(paged[-1].run, paged[-1].super_step)
        )
        assert paged == rows

    @scenario
    async def test_a_threads_page_after_a_run_that_is_not_there_is_empty(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, end(claimed))

        assert await bench.store.thread_checkpoints(claimed.thread, after=(10**15, 1)) == []

    @scenario
    async def test_a_page_is_cut_at_the_most_there_may_be_and_empty_below_one(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.commit(worker, again(claimed, 2), end(claimed, super_step=3))
        await bench.start_many(LIST_ROWS_MAX + 1)
        store = bench.store

        assert len(await store.list_runs(RunFilter(limit=10 * LIST_ROWS_MAX))) == LIST_ROWS_MAX
        assert len(await store.list_threads(limit=10 * LIST_ROWS_MAX)) == LIST_ROWS_MAX
        for limit in (0, -1):
            assert await store.list_runs(RunFilter(limit=limit)) == []
            assert await store.list_runs(RunFilter(limit=limit, thread_id="t")) == []
            assert await store.list_threads(limit=limit) == []
            assert await store.checkpoints(claimed.run, limit=limit) == []
            assert await store.thread_checkpoints(claimed.thread, limit=limit) == []

    @scenario
    async def test_tries_are_listed_by_super_step_key_and_number(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, attempt(claimed, "b", 2), attempt(claimed, "b", 1), attempt(claimed, "a", 1))
        await bench.commit(worker, again(claimed, 2), attempt(claimed, "a", 10, super_step=2))

        tries = await bench.store.attempts(claimed.run)

        assert [(row.super_step, row.key, row.attempt) for row in tries] == [
            (1, "a", 1),
            (1, "b", 1),
            (1, "b", 2),
            (2, "a", 10),
        ]

    @scenario
    async def test_outcomes_are_told_of_runs_that_ended(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        good, bad, held, running = await bench.claim(worker)
        await bench.commit(worker, end(good, b"result"), fail(bad, b"boom"), hold(held))

        outcomes = await bench.store.outcomes([running.run, bad.run, good.run, held.run])

        assert sorted(outcomes, key=lambda each: each.run) == sorted(
            [Outcome(good.run, False, b"result"), Outcome(bad.run, True, b"boom")], key=lambda each: each.run
        )


class Hinting(Harness):
    """What hints promise: none is needed, but one that can be given is."""

    @scenario
    async def test_the_end_of_a_watched_run_is_hinted(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        watcher = await bench.clone()
        async with hints(watcher) as hinted:
            await watcher.watch([claimed.run])

            await bench.commit(worker, end(claimed))

            await hinted(Hint.ENDED)

    @scenario
    async def test_a_watched_run_that_is_held_is_hinted(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        async with hints(bench.store) as hinted:
            await bench.store.watch([claimed.run])

            await bench.commit(worker, hold(claimed))

            await hinted(Hint.ENDED)

    @scenario
    async def test_a_watched_run_that_is_held_as_poison_is_hinted(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        async with hints(bench.store) as hinted:
            await bench.store.watch([claimed.run])

            await bench.die(worker, recoveries_max=1)

            await hinted(Hint.ENDED)

    @scenario
    async def test_watching_what_has_ended_or_is_unknown_is_harmless(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, end(claimed))

        await bench.store.watch([claimed.run, 10**15])
        await bench.store.watch([])

    @scenario
    async def test_an_idle_worker_is_hinted_at_a_start(self, bench: Bench) -> None:
        idle = await bench.clone()
        await bench.store.set_idle(await bench.worker(), True)
        async with hints(idle) as hinted:
            await bench.start()

            await hinted(Hint.WORK)

    @scenario
    async def test_an_idle_worker_is_hinted_at_whatever_makes_a_run_claimable(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        second = await bench.start("t")
        dead, orphan = await bench.begin("u")
        retired, returned = await bench.begin("v")
        async with hints(await bench.clone()) as hinted:
            await bench.store.set_idle(await bench.worker(), True)

            await bench.commit(worker, fail(first))
            await hinted(Hint.WORK)

            await bench.die(dead)
            await hinted(Hint.WORK)

            await bench.store.retire(retired)
            await hinted(Hint.WORK)

            claimed = {each.run: each for each in await bench.claim(worker)}
            assert set(claimed) == {second, orphan.run, returned.run}
            await bench.commit(worker, requeue(claimed[second]))
            await hinted(Hint.WORK)

            await bench.commit(worker, hold(claimed[orphan.run]))
            await bench.store.release(orphan.run)
            await hinted(Hint.WORK)

            await bench.commit(worker, fail(claimed[returned.run]))
            await bench.store.retry(returned.run, [])
            await hinted(Hint.WORK)

    @scenario
    async def test_hints_cross_event_loops(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        async with hints(bench.store) as hinted:
            await bench.store.watch([claimed.run])

            async def work(own: Bench, number: int) -> None:
                await own.commit(worker, end(claimed))

            await in_threads(1, bench, work)
            await hinted(Hint.ENDED)

    @scenario
    async def test_who_stopped_listening_hears_nothing(self, bench: Bench) -> None:
        heard: list[Hint] = []
        stop = bench.store.listen(heard.append)
        stop()
        stop()
        worker, claimed = await bench.begin()
        async with hints(bench.store) as hinted:
            await bench.store.watch([claimed.run])
            await bench.commit(worker, end(claimed))
            await hinted(Hint.ENDED)

        assert heard == []
