"""Waiting on Postgres, two transactions at a time: each is held open just before its commit, and the other must wait
for it and then see it. Then many at once, for seconds."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import pytest

from perdure.core.changes import Change, CommitOutcome
from perdure.core.records import Claimed, IfBusy, RunState, WaitKind
from perdure.core.requests import InterruptFilter, NewAnswer, Parent, ParentGone, RunFilter, Sent, Started
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from perdure.store.protocol import Hint, Store
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    bury,
    cancelled,
    close,
    end,
    park,
    step,
    wait,
)
from perdure.testing.conformance.wakers import MAILBOX_MAX, WAKERS
from tests.support import postgres
from tests.support.waiting import becomes

pytestmark = pytest.mark.postgres

T = TypeVar("T")


class Fresh(Harness):
    """Stores on an empty schema."""

    def __init__(self) -> None:
        self.url = postgres.common_url()

    def store(self) -> PostgresStore:
        return PostgresStore(self.url)

    async def open_store(self) -> Store:
        store = await super().open_store()
        await postgres.empty(self.url)
        return store


class Held:
    """A verb of an open store, done but for the commit of its first write, until `commit`."""

    def __init__(self, store: Store, verb: Callable[[Store], Awaitable[Any]]) -> None:
        assert isinstance(store, PostgresStore)
        self._done, self._go = asyncio.Event(), asyncio.Event()
        lines = [store._claims, store._commits, *store._clients._lines]
        uses = [line.use for line in lines]
        for line, use in zip(lines, uses, strict=True):
            line.use = self._holding(use)  # type: ignore[method-assign, assignment]
        self._verb = asyncio.create_task(self._play(store, verb))

    def _holding(self, use: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def work_and_wait(connection: Any, work: Callable[[Any], Awaitable[Any]]) -> Any:
            async with connection.transaction():
                result = await work(connection)
                if await connection.fetchval("select pg_current_xact_id_if_assigned() is not null"):
                    self._done.set()
                    await self._go.wait()
            return result

        return lambda work: use(lambda connection: work_and_wait(connection, work))

    async def _play(self, store: Store, verb: Callable[[Store], Awaitable[Any]]) -> Any:
        return await verb(store)

    async def written(self) -> None:
        done = asyncio.create_task(self._done.wait())
        await asyncio.wait([done, self._verb], return_when=asyncio.FIRST_COMPLETED)
        assert self._done.is_set(), await self._verb

    async def commit(self) -> Any:
        self._go.set()
        return await self._verb


class Stage:
    """A bench, a store whose next verb is held, and an eye on who waits for a lock."""

    def __init__(self, bench: Bench, other: Store, harness: Fresh) -> None:
        self.bench = bench
        self.other = other
        self._schema = parse(harness.url).schema

    async def held_against(self, held: Callable[[Store], Awaitable[Any]], free: Awaitable[T]) -> tuple[Any, T]:
        """What both say: `free` begins while `held` has written and not committed, and must wait for it."""
        holding = Held(self.other, held)
        await holding.written()
        task = asyncio.ensure_future(free)
        await asyncio.wait(
            [task, asyncio.create_task(self._somebody_waits())], return_when=asyncio.FIRST_COMPLETED, timeout=20
        )
        assert not task.done(), f"did not wait: {task}"
        first = await holding.commit()
        return first, await task

    async def _somebody_waits(self) -> None:
        server = postgres.shared()
        watch = await asyncpg.connect(
            host=str(server.directory), port=server.port, user="postgres", database="postgres"
        )
        question = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0"

        async def look() -> bool:
            found: int = await watch.fetchval(question, self._schema)
            return found > 0

        try:
            await becomes(look, "somebody waits for a lock")
        finally:
            await watch.close()


@contextlib.asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    harness = Fresh()
    bench = Bench(harness, await harness.open_store())
    try:
        with harness.mailbox_max(MAILBOX_MAX):
            yield Stage(bench, await bench.clone(), harness)
    finally:
        await bench.close()


def played(body: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with stage() as on:
            await body(on)

    asyncio.run(main())


# -- parking and waking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("name", WAKERS)
def test_a_parking_waits_for_what_is_about_to_wake_the_run_and_is_not_parked(name: str, opens: bool) -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        opening, deed = await WAKERS[name](on.bench, claimed)
        await on.bench.commit(worker, opening)
        batch: list[Change] = [opening, park(claimed)] if opens else [park(claimed)]

        _, outcome = await on.held_against(deed, on.bench.store.commit(worker, batch))

        assert outcome == CommitOutcome(awake=frozenset({claimed.run}))
        assert await on.bench.state(claimed.run) is RunState.RUNNING

    played(body)


@pytest.mark.parametrize("opens", [True, False])
@pytest.mark.parametrize("name", WAKERS)
def test_what_wakes_a_run_waits_for_its_parking_and_then_wakes_it(name: str, opens: bool) -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        opening, deed = await WAKERS[name](on.bench, claimed)
        if opening.kind is WaitKind.ANSWER or not opens:  # nobody can answer what nobody has asked
            await on.bench.commit(worker, opening)
        batch: list[Change] = [opening, park(claimed)] if opens else [park(claimed)]

        outcome, _ = await on.held_against(lambda store: store.commit(worker, batch), deed(on.bench.store))

        assert outcome == CommitOutcome()
        assert await on.bench.state(claimed.run) is RunState.QUEUED
        (again,) = await on.bench.claim(worker, agents=("agent",))
        assert [each.ready for each in again.waits] == [True]

    played(body)


@pytest.mark.parametrize("name", [name for name in WAKERS if name != "an answer"])
def test_a_run_that_begins_to_wait_is_told_of_what_comes_meanwhile(name: str) -> None:
    """It does not park, since other branches of it go on."""

    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        opening, deed = await WAKERS[name](on.bench, claimed)
        told = asyncio.Event()
        listening = asyncio.Event()

        def hear(hint: Hint) -> None:
            if not listening.is_set():
                listening.set()
            elif hint is Hint.WAKE:
                told.set()

        on.bench.store.listen(hear)
        await listening.wait()
        await on.bench.store.reserve_ids(1)
        told.clear()

        await on.held_against(lambda store: store.commit(worker, [opening]), deed(on.bench.store))

        await asyncio.wait_for(told.wait(), 20)
        assert [each.ready for each in await on.bench.store.waits([claimed.run])] == [True]

    played(body)


def test_a_message_that_meets_the_claim_of_its_receiver_tells_the_new_owner() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.parked("t", wait(kind=WaitKind.MESSAGE, delay_s=1))
        await becomes(lambda: _is_due(on.bench, claimed.run), "the run is due")
        message = await on.bench.message("t")

        claims, (sent,) = await on.held_against(
            lambda store: on.bench.claim(worker, store), on.bench.store.send([message])
        )

        assert isinstance(sent, Sent) and [each.run for each in claims] == [claimed.run]
        assert await on.bench.state(claimed.run) is RunState.RUNNING
        outcome = await on.bench.store.commit(worker, [park(claims[0])])
        assert outcome.awake == {claimed.run}

    played(body)


async def _is_due(bench: Bench, run: int) -> bool:
    return (await bench.run(run)).ready_at <= await bench.store.now_us()


# -- cancellation --------------------------------------------------------------------------------------------


def test_an_end_waits_for_a_cancellation_and_is_not_written() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        batch: list[Change] = [step(claimed, "s"), end(claimed)]

        _, outcome = await on.held_against(
            lambda store: store.cancel(claimed.run, "enough", b""), on.bench.store.commit(worker, batch)
        )

        assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))
        assert set(await on.bench.steps(claimed.run)) == {"s"}
        assert await on.bench.state(claimed.run) is RunState.RUNNING

    played(body)


def test_a_cancellation_waits_for_an_end_and_changes_nothing() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()

        outcome, row = await on.held_against(
            lambda store: store.commit(worker, [end(claimed)]), on.bench.store.cancel(claimed.run, "enough", b"")
        )

        assert outcome == CommitOutcome()
        assert row is not None and (row.state, row.cancel) == (RunState.COMPLETED, None)

    played(body)


def test_a_cancellation_waits_for_a_child_that_is_being_started_and_cancels_it_too() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        ask = await on.bench.ask("child", parent=Parent(claimed.run, claimed.fence, worker))

        outcomes, _ = await on.held_against(
            lambda store: store.start([ask]), on.bench.store.cancel(claimed.run, "enough", b"")
        )

        assert outcomes == [Started(ask.id, "child", True)]
        assert await on.bench.state(ask.id) is RunState.CANCELLED

    played(body)


def test_a_child_waits_for_the_cancellation_of_its_parent_and_is_not_started() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        ask = await on.bench.ask("child", parent=Parent(claimed.run, claimed.fence, worker))

        _, outcomes = await on.held_against(
            lambda store: store.cancel(claimed.run, "enough", b""), on.bench.store.start([ask])
        )

        assert outcomes == [ParentGone(claimed.run, True)]

    played(body)


def test_a_run_that_interrupts_another_waits_for_its_end() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin("t")
        ask = await on.bench.ask("t", if_busy=IfBusy.INTERRUPT)

        _, outcomes = await on.held_against(
            lambda store: store.commit(worker, [end(claimed)]), on.bench.store.start([ask])
        )

        assert outcomes == [Started(ask.id, "t", True)]
        assert (await on.bench.run(claimed.run)).cancel is None
        assert (await on.bench.claim_one(worker)).run == ask.id

    played(body)


# -- many at once --------------------------------------------------------------------------------------------

SECONDS = 4.0
PARENTS = 24
CHILDREN = 12
HUB = "hub"


class Hammer:
    """Runs that wait for all kinds of things, several at a time, and others that bring these about."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.threads = [f"t{n}" for n in range(PARENTS)]
        self.over = asyncio.Event()
        self.ended: set[int] = set()
        self.claims = 0

    async def play(self) -> None:
        for name in self.threads:
            await self.bench.start(name)
        _, self.hub = await self.bench.begin(HUB, agent=HUB)
        clones = iter(await self.bench.clones(9))
        workers = [asyncio.create_task(self._execute(next(clones))) for _ in range(3)]
        others = (self._answer, self._send, self._send, self._receive, self._end_children, self._cancel)
        doers = [asyncio.create_task(each(next(clones))) for each in others]
        await asyncio.sleep(SECONDS)  # so long they all go on
        self.over.set()
        await asyncio.wait(workers, timeout=25)
        for task in doers:
            task.cancel()
        await asyncio.wait([*workers, *doers], timeout=5)
        for task in (*workers, *doers):
            assert task.cancelled() or not task.done() or task.exception() is None, task.exception()
        await self._see_that_nobody_was_lost()

    async def _see_that_nobody_was_lost(self) -> None:
        parked = [run.id for run in await self.bench.store.list_runs(RunFilter(state=RunState.WAITING))]
        assert [each for each in await self.bench.store.waits(parked) if each.ready] == []
        assert parked == [], await self.bench.store.waits(parked)
        assert len(self.ended) == PARENTS

    # -- the runs --------------------------------------------------------------------------------------------

    async def _execute(self, store: Store) -> None:
        """Claim, look which wait is over, wait for more, and park: until the end, when runs end where they are."""
        worker = await self.bench.worker(store)
        awake: list[Claimed] = []
        while len(self.ended) < PARENTS:
            claimed = await self.bench.claim(worker, store, limit=5)
            for each in claimed:
                # (Room may be gone again when its time comes to take it.)
                over = [wait for wait in each.waits if wait.ready or wait.kind is WaitKind.ROOM]
                assert each.attempt == 1 or each.cancel or over, "woken for nothing"
            self.claims += len(claimed)
            now = [*awake, *claimed]
            awake = []
            batch: list[Change] = []
            for each in now:
                batch += await self._slice(store, worker, each)
            outcome = await store.commit(worker, batch)
            assert not outcome.lost and not outcome.refused, outcome
            self.ended |= {each.run for each in now} & {run.id for run in await self._terminal(store, now)}
            awake = [
                each for each in now if each.run in outcome.awake | outcome.cancelled and each.run not in self.ended
            ]
            if not now:
                await asyncio.sleep(0.002)  # nothing to claim just now

    async def _terminal(self, store: Store, claims: list[Claimed]) -> list[Any]:
        runs = await store.get_runs([each.run for each in claims])
        return [run for run in runs if run.ended_at is not None]

    async def _slice(self, store: Store, worker: int, claimed: Claimed) -> list[Change]:
        row = (await store.get_runs([claimed.run]))[0]
        if row.cancel is not None:
            return [cancelled(claimed, waited=True)]
        if self.over.is_set():
            return [end(claimed, waited=True)]
        changes: list[Change] = []
        taken: set[int] = set()
        waits = await store.waits([claimed.run])
        for each in waits:
            if not each.ready:
                continue
            take = None
            if each.kind is WaitKind.MESSAGE and not each.due:
                found = [m.seq for m in await store.mailbox(claimed.thread) if m.seq not in taken]
                take = found[0] if found else None
                taken |= set(found[:1])
            changes.append(close(claimed, each.key, take=take))
        for _ in range(self.random.randint(1, 2) if len(waits) - len(changes) < 4 else 0):
            changes.append(await self._opening(store, worker, claimed))
        return [*changes, park(claimed)]

    async def _opening(self, store: Store, worker: int, claimed: Claimed) -> Change:
        key = f"w{await self.bench.new_id()}"
        match self.random.randrange(5):
            case 0:
                return wait(claimed, key, delay_us=self.random.randrange(30_000))
            case 1:
                return wait(claimed, key, WaitKind.ANSWER, interrupt=await self.bench.question())
            case 2:
                return wait(claimed, key, WaitKind.MESSAGE)
            case 3:
                ask = await self.bench.ask(
                    f"c{await self.bench.new_id()}", agent="child", parent=Parent(claimed.run, claimed.fence, worker)
                )
                (outcome,) = await store.start([ask])
                if isinstance(outcome, Started):
                    return wait(claimed, key, WaitKind.RUN, target=ask.id)
                return wait(claimed, key, delay_us=0)
            case _:
                return wait(claimed, key, WaitKind.ROOM, target=self.hub.thread)

    # -- the others ------------------------------------------------------------------------------------------

    async def _answer(self, store: Store) -> None:
        while True:
            for each in await store.interrupts(InterruptFilter(limit=20)):
                await store.answer(NewAnswer(each.id, b"yes", None))
            await asyncio.sleep(0.002)  # the others want to work too

    async def _send(self, store: Store) -> None:
        while True:
            names = [*self.random.sample(self.threads, 3), HUB]
            outcomes = await store.send([await self.bench.message(name) for name in names])
            assert len(outcomes) == 4
            await asyncio.sleep(0.002)  # the others want to work too

    async def _receive(self, store: Store) -> None:
        """Empty the mailbox of the hub, which others keep full."""
        worker = (await store.get_runs([self.hub.run]))[0].worker
        assert worker is not None
        while True:
            for message in await store.mailbox(self.hub.thread):
                key = f"m{message.seq}"
                change = bury(self.hub, message.seq) if message.seq % 2 else close(self.hub, key, take=message.seq)
                assert await store.commit(worker, [change]) == CommitOutcome()
            await asyncio.sleep(0.01)  # long enough for it to fill

    async def _end_children(self, store: Store) -> None:
        worker = await self.bench.worker(store)
        while True:
            children = await self.bench.claim(worker, store, agents=("child",), limit=CHILDREN)
            self.random.shuffle(children)
            await store.commit(worker, [cancelled(c) if c.cancel else end(c) for c in children])
            late = [c for c in children if (await store.get_runs([c.run]))[0].state is RunState.RUNNING]
            await store.commit(worker, [cancelled(c) for c in late])
            await asyncio.sleep(0.002)  # the others want to work too

    async def _cancel(self, store: Store) -> None:
        """Cancel, seldom. (One that nobody has begun ends at once.)"""
        while True:
            await asyncio.sleep(0.2)  # seldom, or nothing would ever wait
            head = (await self.bench.thread(self.random.choice(self.threads))).head
            if head is not None and not self.over.is_set():
                row = await store.cancel(head, "enough", b"")
                self.ended |= {head} if row is not None and row.ended_at is not None else set()


@pytest.mark.parametrize("seed", [1, 2])
def test_runs_that_wait_for_everything_at_once_are_all_woken_and_never_for_nothing(seed: int) -> None:
    async def main() -> None:
        async with stage() as on:
            hammer = Hammer(on.bench, seed)
            await hammer.play()
            assert hammer.claims > PARENTS

    asyncio.run(main())
