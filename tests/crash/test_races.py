"""Races that two sides run at the same instant: one wins, and whoever asked was told which.

The moment is steered: whoever has won a race begins the next one a little later. So both win many, and many races are
close. `$PERDURE_TEST_RACES` says how many there are of those that have to wait for a time; `make prove` asks for 1,000.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from perdure import App, Handle, InterruptClosed, RunCancelled
from perdure.core.records import InterruptState, Kind, Run, RunState
from perdure.store.protocol import Store
from tests.support.processes import Fleet
from tests.support.waiters import app_on, wall_us
from tests.support.waiting import LOOK_S
from tests.support.witness import all_runs

CANCELLATIONS = 1000
RACES = int(os.environ.get("PERDURE_TEST_RACES", "200"))
AT_ONCE = 30
SHARE_MIN = 0.05
"""Of the races, each side must have won: else they did not race."""
STEP_S_MIN, STEP_S_MAX = 0.001, 0.02
"""How much later the winner comes to the next race: the more, the longer that side has been winning."""
PATIENCE_S = 30.0

pytestmark = pytest.mark.timeout(120)


class Track:
    """Races on one store, against a worker process."""

    def __init__(self, app: App, store: Store, *, count: int, head_start_s: float) -> None:
        self.app = app
        self.store = store
        self.count = count
        self.chance = random.Random()
        self.wins: Counter[str] = Counter()
        self.times: dict[int, int] = {}
        """When the time of each run's wait comes, on the store's clock."""
        self._head_start_s = head_start_s
        self._step_s = STEP_S_MIN
        self._we_won: bool | None = None

    def won(self, side: str, *, we: bool) -> None:
        """Note who won; `we` are those who waited for the moment, and come a little later if they have won."""
        self.wins[side] += 1
        again, self._we_won = self._we_won is we, we
        self._step_s = min(1.2 * self._step_s, STEP_S_MAX) if again else max(self._step_s / 2, STEP_S_MIN)
        self._head_start_s += self._step_s if we else -self._step_s

    @property
    def handicap_ms(self) -> float:
        """How much the others come later, where we cannot come earlier."""
        return max(0.0, -1000 * self._head_start_s)

    async def moment(self, since_us: int = 0, *, spread_s: float) -> None:
        """Wait for the moment, counted from a time on the machine's clock, or from now."""
        ahead_s = max(0.0, since_us - wall_us()) / 1e6 if since_us else 0.0
        wait_s = ahead_s + self._head_start_s + self.chance.uniform(-spread_s, spread_s)
        await asyncio.sleep(wait_s)  # the moment is steered

    async def due(self, handle: Handle[object]) -> int:
        """When the time of the run's wait comes, once it waits."""
        self.times[handle._id] = 0
        while not self.times[handle._id]:
            await asyncio.sleep(LOOK_S)  # between two looks of `look`
        return self.times.pop(handle._id)

    async def look(self) -> None:
        """Look for the waits of those who want to know, until cancelled."""
        while True:
            for wait in await self.store.waits([run for run, at in self.times.items() if not at]):
                if wait.due_at is not None and wait.run in self.times:
                    self.times[wait.run] = wait.due_at
            await asyncio.sleep(LOOK_S)  # a look costs a query

    async def run(self, race: Callable[[Track], Awaitable[None]]) -> None:
        """All races, some at once."""
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                await race(self)

        looking = asyncio.create_task(self.look())
        async with asyncio.TaskGroup() as group:
            for _ in range(self.count):
                group.create_task(one())
        looking.cancel()

    def judge(self, *sides: str) -> None:
        """Every race has a winner, and both sides won some."""
        print(", ".join(f"{self.wins[side]:,} {side}" for side in sides))
        assert sum(self.wins.values()) == self.count and set(self.wins) <= set(sides)
        assert min(self.wins[side] for side in sides) >= SHARE_MIN * self.count, self.wins


def races(fleet: Fleet, race: Callable[[Track], Awaitable[None]], *sides: str, count: int, head_start_s: float) -> None:
    """Run so many races of a kind against a worker process, and judge them."""

    async def main() -> None:
        async with app_on(fleet.store_url) as app:
            store = (await app._client()).store
            fleet.hire(lease_s=10).started()
            track = Track(app, store, count=count, head_start_s=head_start_s)
            await track.run(race)
            for run in await all_runs(store):
                await _has_one_end(store, run)
            track.judge(*sides)

    asyncio.run(main())


async def _has_one_end(store: Store, run: Run) -> None:
    """One terminal state, and a log that ends once, with the same."""
    ends = [row for row in await store.checkpoints(run.id, boundaries=True) if row.kind is Kind.ENDED]
    assert [row.failed for row in ends] == [run.state is not RunState.COMPLETED], (run, ends)
    assert run.state in (RunState.COMPLETED, RunState.CANCELLED), run


# -- cancel against completion --------------------------------------------------------------------------------


async def cancel_or_complete(track: Track) -> None:
    handle = await track.app.start("brief", track.handicap_ms + track.chance.random() * 5)
    await track.moment(spread_s=0.01)
    told = await handle.cancel("a race")
    try:
        ended = RunState.COMPLETED if await handle.result(timeout=PATIENCE_S) == "done" else RunState.FAILED
    except RunCancelled as error:
        assert error.reason == "a race"
        ended = RunState.CANCELLED
    status = await handle.status()
    assert told is ended is status.state, (told, ended, status)
    assert status.cancel == ("a race" if ended is RunState.CANCELLED else None)
    assert await handle.cancel("once more") is ended, "and it stays so"
    track.won(ended, we=ended is RunState.CANCELLED)


def test_c05_cancel_and_completion_race_and_one_wins_and_the_caller_is_told_which(waiters: Fleet) -> None:
    races(waiters, cancel_or_complete, "completed", "cancelled", count=CANCELLATIONS, head_start_s=0.02)


# -- an answer against the end of its time ---------------------------------------------------------------------


async def answer_or_expire(track: Track) -> None:
    handle = await track.app.start("expires", 0.3 + track.chance.random() * 0.3)
    due = await track.due(handle)
    (question,) = await track.app.interrupts(run_id=handle.run_id, state=None)
    await track.moment(due, spread_s=0.01)
    try:
        info = await track.app.resume(question.id, f"yes to {handle.run_id}")
        assert info.state is InterruptState.ANSWERED
        told = "answered"
    except InterruptClosed as error:
        assert error.state is InterruptState.EXPIRED
        told = "expired"
    heard = await handle.result(timeout=PATIENCE_S)
    assert heard == (f"YES TO R{handle._id}" if told == "answered" else "NOBODY ANSWERED"), (told, heard)
    assert (await track.app.interrupt_info(question.id)).state == told
    track.won(told, we=told == "answered")


def test_an_answer_and_the_end_of_its_time_race_and_the_caller_is_told_what_the_agent_saw(waiters: Fleet) -> None:
    races(waiters, answer_or_expire, "answered", "expired", count=RACES, head_start_s=0)


# -- a message against a time-out -------------------------------------------------------------------------------


async def send_or_time_out(track: Track) -> None:
    handle = await track.app.start("listens", 0.3 + track.chance.random() * 0.3)
    due = await track.due(handle)
    await track.moment(due, spread_s=0.01)
    sent = await track.app.send(handle.thread_id, handle._id)
    heard = await handle.result(timeout=PATIENCE_S)
    left = [each.id for each in await track.app.thread(handle.thread_id).mailbox()]
    assert (heard, left) in [(handle._id, []), (None, [sent])], "it was received, or it is still there"
    track.won("received" if heard else "timed out", we=heard is not None)


def test_a_message_and_a_time_out_race_and_the_message_is_received_or_still_there(waiters: Fleet) -> None:
    races(waiters, send_or_time_out, "received", "timed out", count=RACES, head_start_s=0)
