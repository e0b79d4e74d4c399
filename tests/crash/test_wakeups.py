"""Each kind of wake-up, under three workers of which one is killed with `kill -9` now and then, while hints are taken
away: no wait is lost, none is woken twice, and none is late by more than a bound.

`$PERDURE_TEST_WAITS` says how many waits there are to be; `make prove` asks for 10,000.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from perdure import App, InterruptInfo, RunCancelled, RunFailed
from perdure.core.records import RunState
from perdure.core.states import TERMINAL
from tests.support.deafness import deafness, strike_again_and_again
from tests.support.processes import Fleet
from tests.support.sidelog import Body, SideLog, say
from tests.support.waiters import SOMEBODY, app_on, wall_us
from tests.support.waiting import becomes
from tests.support.wakeups import Wakeups, causes, told_late
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record, records

WAITS = int(os.environ.get("PERDURE_TEST_WAITS", "400"))

WORKERS = 3
AT_ONCE = 100
"""Scenes that are played at a time."""
SCENES_A_KILL = 45

POLL_S = 0.25
LEASE_S = 2.0
HEARTBEAT_S = 0.5
SETTINGS = {"poll_s": POLL_S, "lease_s": LEASE_S, "recoveries_max": 1000}
"""Runs are not held for what is done to their workers here, however often one of them is hit."""
PATIENCE_S = 45.0 + WAITS / 100
"""What was lost stays so; so this may be long, for a machine that is busy with all that."""

LATE_S_MAX = 2 * (LEASE_S + POLL_S) + 6.0
"""Twice a worker may die that has just taken what was woken, and others have to see that and to look; the rest is for a
busy machine."""


class Theatre:
    """Plays scenes: starts runs, does what they wait for at random moments, and looks at what they answer."""

    def __init__(self, app: App, chance: random.Random) -> None:
        self.app = app
        self.chance = chance
        self.played = 0
        self.late: dict[str, list[float]] = {"DEADLINE": [], "CANCEL": []}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def play(self, scene: Callable[[Theatre], Awaitable[None]]) -> None:
        """One scene, when there is room for it."""
        async with self._places:
            try:
                await scene(self)
            except TimeoutError as late:
                raise AssertionError(await self._lying_about()) from late
            self.played += 1

    async def moment(self, longest_s: float) -> None:
        """Let some time pass."""
        await asyncio.sleep(self.chance.random() * longest_s)  # the moment is random on purpose

    async def answer(self) -> None:
        """Answer whatever is asked, each sooner or later, until cancelled."""
        seen = set[str]()
        async with asyncio.TaskGroup() as group:
            while True:
                for asked in await self.app.interrupts(assignee=SOMEBODY, limit=1000):
                    if asked.id not in seen:
                        seen.add(asked.id)
                        group.create_task(self._answer(asked))
                await self.moment(0.1)

    async def _answer(self, asked: InterruptInfo) -> None:
        await self.moment(0.4)
        await self.app.resume(asked.id, f"{asked.run_id}/{asked.payload}", by="the test")

    async def _lying_about(self) -> str:
        """What has not ended, for a failing test."""
        store = (await self.app._client()).store
        runs = [run for run in await all_runs(store) if run.state not in TERMINAL]
        waits = await store.waits([run.id for run in runs])
        rows = [await store.now_us(), *runs, *waits, *await store.workers(alive=False)]
        return "\n".join(map(repr, rows))

    def ended_late(self, kind: str, cause: int, ended: int) -> None:
        """A run ended for this cause."""
        assert ended >= cause, f"{kind}: it ended {cause - ended} us early"
        self.late[kind].append((ended - cause) / 1e6)


# -- the scenes: each has two waits, or as many as it says -----------------------------------------------------


async def timers(at: Theatre) -> None:
    assert await (await at.app.start("naps", 2, 0.5)).result(timeout=PATIENCE_S) == 2


async def questions(at: Theatre) -> None:
    handle = await at.app.start("asks", 2)
    assert await handle.result(timeout=PATIENCE_S) == [f"{handle.run_id}/{number}" for number in range(2)]


async def messages(at: Theatre) -> None:
    handle = await at.app.start("reads", 2)
    for number in range(2):
        await at.moment(0.4)
        say("sent", run=handle.run_id, number=number, wall_us=wall_us())
        await at.app.send(handle.thread_id, number)
    assert await handle.result(timeout=PATIENCE_S) == [0, 1]


async def children(at: Theatre) -> None:
    """Two children, each of which waits for a time itself."""
    assert await (await at.app.start("calls", 2)).result(timeout=PATIENCE_S) == 1


async def full_mailboxes(at: Theatre) -> None:
    """Six messages to a slow reader whose mailbox holds two, and who begins when the writer waits for room."""
    reader = await at.app.start("reads_when_told", 6, 200)
    writer = await at.app.start("stuffs", reader.thread_id, 6)
    store = (await at.app._client()).store
    (begin,) = await becomes(lambda: at.app.interrupts(run_id=reader.run_id), "the reader asks", within_s=PATIENCE_S)
    await becomes(lambda: store.waits([writer._id]), "the mailbox is full", within_s=PATIENCE_S)
    await at.app.resume(begin.id, None)
    assert await writer.result(timeout=PATIENCE_S) == 6
    assert await reader.result(timeout=PATIENCE_S) == list(range(6))


async def branches(at: Theatre) -> None:
    """Six waits: two questions, a timer, a child and its timer, a message."""
    handle = await at.app.start("waits_at_once")
    await at.moment(0.6)
    await at.app.send(handle.thread_id, 7)
    one, two = f"{handle.run_id}/0", f"{handle.run_id}/1"
    assert await handle.result(timeout=PATIENCE_S) == [
        [one, "one"], [two, "two"], [None, "timer"], [9, "child"], [7, "message"],
    ]  # fmt: skip


async def deadlines(at: Theatre) -> None:
    for _ in range(2):
        handle = await at.app.start("never", deadline=0.2 + at.chance.random() * 0.5)
        with pytest.raises(RunFailed) as over:
            await handle.result(timeout=PATIENCE_S)
        assert over.value.error.type.endswith("DeadlineExceeded"), over.value.error
        (run,) = await (await at.app._client()).store.get_runs([handle._id])
        assert run.deadline_at is not None and run.ended_at is not None
        at.ended_late("DEADLINE", run.deadline_at, run.ended_at)


async def cancellations(at: Theatre) -> None:
    for _ in range(2):
        handle = await at.app.start("never")
        await at.moment(0.6)
        asked_at = wall_us()
        assert await handle.cancel("enough of it") is RunState.CANCELLED
        with pytest.raises(RunCancelled, match="enough of it"):
            await handle.result(timeout=PATIENCE_S)
        (run,) = await (await at.app._client()).store.get_runs([handle._id])
        assert run.ended_at is not None
        at.ended_late("CANCEL", asked_at, run.ended_at)


SCENES = (
    4 * [timers]
    + 4 * [questions]
    + 4 * [messages]
    + 3 * [children]
    + [full_mailboxes, branches]
    + (4 * [deadlines] + 4 * [cancellations])
)
WAITS_A_ROUND = 50
"""At least: a message that was there before anybody asked for it was not waited for, nor was room that was there."""


@pytest.mark.timeout(60 + WAITS // 10)
def test_no_wake_up_is_lost_or_comes_twice_under_kills_and_with_hints_taken_away(waiters: Fleet, log: SideLog) -> None:
    chance = random.Random()
    scenes = SCENES * (1 + WAITS // WAITS_A_ROUND)
    chance.shuffle(scenes)

    async def main() -> None:
        async with app_on(waiters.store_url) as app, deafness(waiters.store_url, heartbeat_s=HEARTBEAT_S) as ears:
            await app.runs()
            waiters.extra |= ears.environ
            for worker in [waiters.hire(**SETTINGS) for _ in range(WORKERS)]:
                worker.started()
            theatre = Theatre(app, chance)
            async with asyncio.TaskGroup() as beside:
                helpers = [
                    beside.create_task(theatre.answer()),
                    beside.create_task(strike_again_and_again(ears, lambda: chance.uniform(0.2, 2))),
                ]
                killing = beside.create_task(kill_now_and_then(waiters, theatre, len(scenes)))
                async with asyncio.TaskGroup() as playing:
                    for scene in scenes:
                        playing.create_task(theatre.play(scene))
                killed = await killing
                for helper in helpers:
                    helper.cancel()
            assert ears.count >= WORKERS
            await judge(app, theatre, log, killed)

    asyncio.run(main())


async def kill_now_and_then(fleet: Fleet, theatre: Theatre, scenes: int) -> set[int]:
    """Kill a worker each time that some more scenes are over, and hire another; the pids of the killed."""
    killed = set[int]()
    for over in range(SCENES_A_KILL // 2, scenes, SCENES_A_KILL):
        await becomes(lambda over=over: _played(theatre, over), f"{over} scenes are over", within_s=PATIENCE_S)
        await theatre.moment(0.1)
        victim = theatre.chance.choice(fleet.alive)
        victim.kill()
        killed.add(victim.pid)
        fleet.hire(**SETTINGS)
    return killed


async def judge(app: App, theatre: Theatre, log: SideLog, killed: set[int]) -> None:
    """From the rows and the side log: nothing was lost, nothing came twice, nothing was too late."""
    store = (await app._client()).store
    runs = await all_runs(store)
    gone = killed | {line["pid"] for line in log.events("worker.lost")}
    wakeups = Wakeups.of(log)
    found = await records(store, runs)

    assert {run.state for run in runs if run.agent != "never"} == {RunState.COMPLETED}
    assert await app.interrupts() == []
    for at in range(0, len(runs), 1000):
        assert await store.waits([run.id for run in runs[at : at + 1000]]) == []
    await nothing_was_repeated_after_its_record(store, log, killed=gone)
    wakeups.nobody_was_woken_twice(gone)
    never = {f"r{run.id}" for run in runs if run.agent == "never"}
    unrecorded = [place for place in wakeups.stands if place[0] not in never and place not in found]
    assert unrecorded == [], "a wait ends with its record"
    _cleaned_up(never, wakeups, set(found))

    late = wakeups.late_s(await causes(store, log, runs, wakeups)) | theatre.late
    counts = wakeups.kinds(without=never) + Counter({kind: len(times) for kind, times in theatre.late.items()})
    print(told_late(counts, late, killed=len(killed)))
    assert sum(counts.values()) >= WAITS, counts
    assert set(counts) == {"TIMER", "ANSWER", "MESSAGE", "RUN", "ROOM", "DEADLINE", "CANCEL"}
    assert all(count >= WAITS // 100 for count in counts.values()), counts
    assert {kind: max(times) for kind, times in late.items() if max(times) > LATE_S_MAX} == {}
    assert all(min(times) >= 0 for times in late.values()), "nothing is early"


def _cleaned_up(never: set[str], wakeups: Wakeups, found: set[Body]) -> None:
    """Whoever waited in vain, and was interrupted there, has cleaned up."""
    stood = {place[0] for place in wakeups.stands if place[0] in never}
    cleaned = {place[0] for place in found if place[0] in never}
    assert stood <= cleaned, "the step in `finally` is on record"


async def _played(theatre: Theatre, count: int) -> bool:
    return theatre.played >= count
