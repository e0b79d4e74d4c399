"""Scenarios: putting runs on disk."""

from __future__ import annotations

import asyncio
import itertools

from perdure.core.records import IfBusy, Kind, RunState
from perdure.core.requests import KeyTaken, OtherAgent, RunFilter, Started, ThreadHeld
from perdure.testing.conformance.harness import Bench, Harness, blob, end, in_threads, scenario


class Starting(Harness):
    """What `start` promises."""

    @scenario
    async def test_a_started_run_is_there_for_every_other_store(self, bench: Bench) -> None:
        run = await bench.start("t", payload=b"in", priority=3, tenant="acme", tags=("red", "blue"), key="k")
        other = await bench.clone()

        (found,) = await other.get_runs([run])

        assert (found.thread_id, found.agent, found.queue, found.ordinal) == ("t", "agent", "default", 1)
        assert (found.state, found.ready, found.priority, found.key) == (RunState.QUEUED, True, 3, "k")
        assert (found.tenant, found.tags) == ("acme", ("red", "blue"))
        assert (found.worker, found.attempt, found.recoveries, found.strikes, found.super_step) == (None, 0, 0, 0, 1)
        assert (found.deployment, found.reason, found.detail) == (None, None, None)
        assert (found.started_at, found.ended_at) == (None, None)

    @scenario
    async def test_the_arguments_are_filed_as_the_first_boundary(self, bench: Bench) -> None:
        run = await bench.start(payload=b"in")

        (boundary,) = await bench.log(run)

        assert (boundary.super_step, boundary.key, boundary.kind) == (1, "", Kind.BOUNDARY)
        assert (boundary.payload, boundary.state, boundary.failed) == (b"in", None, False)

    @scenario
    async def test_a_new_thread_has_its_run_as_the_head(self, bench: Bench) -> None:
        run = await bench.start("t")

        thread = await bench.thread("t")

        assert (thread.thread_id, thread.agent, thread.head, thread.depth) == ("t", "agent", run, 1)
        assert (thread.last_ordinal, thread.snapshot_run, thread.snapshot_step) == (1, None, None)
        assert (await bench.run(run)).thread == thread.id

    @scenario
    async def test_times_are_on_the_stores_clock(self, bench: Bench) -> None:
        before = await bench.store.now_us()
        run = await bench.run(await bench.start(delay_us=5_000_000))
        after = await bench.store.now_us()

        assert before <= run.created_at <= after
        assert run.ready_at == run.created_at + 5_000_000

    @scenario
    async def test_the_same_key_is_the_same_run(self, bench: Bench) -> None:
        first = await bench.start("t", key="k")

        assert await bench.try_start("t", key="k") == Started(first, "t", False)
        assert await bench.try_start("elsewhere", key="k") == Started(first, "t", False)
        assert await bench.store.get_thread("elsewhere") is None

    @scenario
    async def test_the_same_key_is_the_same_run_after_its_end_too(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", key="k")
        await bench.commit(worker, end(claimed))

        assert await bench.try_start("t", key="k") == Started(claimed.run, "t", False)

    @scenario
    async def test_the_same_key_with_other_input_is_refused(self, bench: Bench) -> None:
        first = await bench.start("t", key="k", payload=b"one")

        assert await bench.try_start("t", key="k", payload=b"two") == KeyTaken(first)
        assert (await bench.thread("t")).depth == 1

    @scenario
    async def test_a_repeated_call_answers_as_the_first_one_did(self, bench: Bench) -> None:
        asked = [await bench.ask("t", key="k"), await bench.ask("u"), await bench.ask("t")]
        first = await bench.store.start(asked)

        assert await bench.store.start(asked) == first
        assert first == [Started(ask.id, ask.thread_id, True) for ask in asked]
        assert (await bench.thread("t")).depth == 2

    @scenario
    async def test_one_call_answers_each_start_in_order(self, bench: Bench) -> None:
        asked = [
            await bench.ask("t", key="k"),
            await bench.ask("t", key="k"),
            await bench.ask("t", key="k", payload=b"other"),
            await bench.ask("t", if_busy=IfBusy.JOIN),
            await bench.ask("t", if_busy=IfBusy.REJECT),
            await bench.ask("t"),
            await bench.ask("t", agent="stranger"),
        ]
        run, queued = asked[0].id, asked[5].id

        assert await bench.store.start(asked) == [
            Started(run, "t", True),
            Started(run, "t", False),
            KeyTaken(run),
            Started(run, "t", False),
            ThreadHeld(run, 1),
            Started(queued, "t", True),
            OtherAgent("agent"),
        ]
        assert [found.id for found in await bench.store.get_runs([ask.id for ask in asked])] == [run, queued]

    @scenario
    async def test_a_start_that_comes_twice_in_one_call_is_one_run(self, bench: Bench) -> None:
        plain, keyed = await bench.ask("t"), await bench.ask("u", key="k")

        outcomes = await bench.store.start([plain, keyed, plain, keyed])

        assert outcomes == [Started(plain.id, "t", True), Started(keyed.id, "u", True)] * 2
        assert [run.id for run in await bench.store.list_runs(RunFilter())] == [keyed.id, plain.id]
        assert (await bench.thread("t")).depth == 1

    @scenario
    async def test_an_empty_call_answers_nothing(self, bench: Bench) -> None:
        assert await bench.store.start([]) == []

    @scenario
    async def test_joining_an_idle_thread_starts_a_run(self, bench: Bench) -> None:
        outcome = await bench.try_start("t", if_busy=IfBusy.JOIN)

        assert isinstance(outcome, Started) and outcome.created

    @scenario
    async def test_joining_a_busy_thread_gives_its_head(self, bench: Bench) -> None:
        head = await bench.start("t")
        await bench.start("t")

        assert await bench.try_start("t", if_busy=IfBusy.JOIN) == Started(head, "t", False)
        assert (await bench.thread("t")).depth == 2

    @scenario
    async def test_the_key_of_a_start_that_joined_stands_for_the_run_it_joined(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        assert await bench.try_start("t", key="k", if_busy=IfBusy.JOIN) == Started(claimed.run, "t", False)
        await bench.commit(worker, end(claimed))

        assert await bench.try_start("t", key="k", if_busy=IfBusy.JOIN) == Started(claimed.run, "t", False)
        assert await bench.try_start("t", key="k", payload=b"other") == KeyTaken(claimed.run)

    @scenario
    async def test_a_busy_thread_rejects_where_asked_to(self, bench: Bench) -> None:
        head = await bench.start("t")
        await bench.start("t")

        assert await bench.try_start("t", if_busy=IfBusy.REJECT) == ThreadHeld(head, 2)
        assert (await bench.thread("t")).depth == 2

    @scenario
    async def test_enqueued_runs_wait_behind_the_head(self, bench: Bench) -> None:
        first, second = await bench.start("t"), await bench.start("t")

        thread, waiting = await bench.thread("t"), await bench.run(second)

        assert (thread.head, thread.depth, thread.last_ordinal) == (first, 2, 2)
        assert (waiting.ordinal, waiting.ready, waiting.state) == (2, False, RunState.QUEUED)

    @scenario
    async def test_a_full_thread_takes_no_more(self, bench: Bench) -> None:
        with self.thread_queue_max(3):
            head, *_ = [await bench.start("t") for _ in range(3)]

            assert await bench.try_start("t") == ThreadHeld(head, 3)
            assert isinstance(await bench.try_start("elsewhere"), Started)
            assert await bench.try_start("t", if_busy=IfBusy.JOIN) == Started(head, "t", False)

    @scenario
    async def test_a_group_that_fills_a_thread_is_cut_at_the_limit(self, bench: Bench) -> None:
        with self.thread_queue_max(3):
            asked = [await bench.ask("t") for _ in range(5)]

            outcomes = await bench.store.start(asked)

        assert outcomes[:3] == [Started(ask.id, "t", True) for ask in asked[:3]]
        assert outcomes[3:] == [ThreadHeld(asked[0].id, 3)] * 2

    @scenario
    async def test_a_thread_belongs_to_one_agent(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", agent="one")

        assert await bench.try_start("t", agent="two") == OtherAgent("one")

        await bench.commit(worker, end(claimed))
        assert await bench.try_start("t", agent="two") == OtherAgent("one")
        assert isinstance(await bench.try_start("t", agent="one"), Started)

    @scenario
    async def test_a_starts_blobs_belong_to_its_thread(self, bench: Bench) -> None:
        await bench.start("t")
        large = blob(b"large" * 10_000)

        await bench.start("t", blobs=(large,))

        thread = await bench.thread("t")
        assert await bench.store.blobs(thread.id, [large.digest]) == {large.digest: large.data}

    @scenario
    async def test_ten_starts_of_one_key_at_once_make_one_run(self, bench: Bench) -> None:
        stores = await bench.clones(10)
        for turn in range(5):
            asked = [await bench.ask(f"t{turn}", key=f"k{turn}") for _ in stores]
            odd = await bench.ask(f"t{turn}", key=f"k{turn}", payload=b"other")

            pairs = zip([*stores, bench.store], [*asked, odd], strict=True)
            answers = await asyncio.gather(*(store.start([ask]) for store, ask in pairs))

            started = [answer for (answer,) in answers if isinstance(answer, Started)]
            assert len([answer for answer in started if answer.created]) == 1
            assert len({answer.run for answer in started}) == 1
            refused = [answer for (answer,) in answers if not isinstance(answer, Started)]
            assert set(refused) <= {KeyTaken(started[0].run)}
            assert len(await bench.store.get_runs([*(ask.id for ask in asked), odd.id])) == 1

    @scenario
    async def test_overlapping_groups_in_opposite_orders_do_not_deadlock(self, bench: Bench) -> None:
        async def produce(bench: Bench, number: int) -> None:
            for turn in range(3):
                names = [f"{turn}-{n}" for n in range(20)]
                if number % 2:
                    names.reverse()
                asked = [await bench.ask(f"t{name}", key=f"k{name}") for name in names]
                for answer in await bench.store.start(asked):
                    assert isinstance(answer, Started)

        await in_threads(8, bench, produce)

        for turn in range(3):
            for n in range(20):
                assert (await bench.thread(f"t{turn}-{n}")).depth == 1

    @scenario
    async def test_concurrent_starts_on_one_thread_get_one_ordinal_each(self, bench: Bench) -> None:
        stores = await bench.clones(4)
        asked = [await bench.ask("t") for _ in range(40)]

        await asyncio.gather(*(stores[n % 4].start([ask]) for n, ask in enumerate(asked)))

        runs = await bench.store.get_runs([ask.id for ask in asked])
        assert sorted(run.ordinal for run in runs) == list(range(1, 41))
        assert [run.id for run in runs if run.ready] == [(await bench.thread("t")).head]

    @scenario
    async def test_names_of_many_emoji_survive(self, bench: Bench) -> None:
        name, tag = "🦉" * 500, "🦊" * 2_000
        tags = (tag, "'; drop table runs; --", '"{}', "")
        run = await bench.start(name, key=name, tenant="🐻" * 128, tags=tags, payload=b"\0" * 20_000)

        found = await bench.run(run)

        assert (found.thread_id, found.key, found.tenant, found.tags) == (name, name, "🐻" * 128, tags)
        assert (await bench.log(run))[0].payload == b"\0" * 20_000

    @scenario
    async def test_reserved_ids_never_overlap(self, bench: Bench) -> None:
        stores = await bench.clones(5)
        sizes = [1, 7, 100, 1_000]

        firsts = await asyncio.gather(*(store.reserve_ids(size) for store in stores for size in sizes))

        blocks = sorted(zip(firsts, sizes * len(stores), strict=True))
        assert blocks[0][0] > 0
        assert all(first + size <= later for (first, size), (later, _) in itertools.pairwise(blocks))
