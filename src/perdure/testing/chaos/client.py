"""A client process: it starts runs under keys all the time, and waits for what comes of them.

It asks for the orders of its own lane and, now and then, for one of the shared lane. A key that was acknowledged is
sometimes asked for again, and sometimes with other input. Whoever succeeds a killed client reads in the recorder's
file what that one left unsettled, asks for it again under the same keys, and goes on. SIGTERM lets a client settle what
it has asked for and end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from perdure.app import App
from perdure.client.serving import run_loop
from perdure.core.records import RunState, parse_run_id
from perdure.errors import RunFailed, RunHeld, StartMismatch, StoreUnavailable, ThreadBusy
from perdure.runtime.handle import Handle
from perdure.testing.chaos.agents import app
from perdure.testing.chaos.orders import SHARED, Order, order
from perdure.testing.chaos.telling import BEGUN, now, tell
from perdure.testing.chaos.testimony import Asked, Refused, Started, Tested, Told, read

T = TypeVar("T")

SETTINGS: Final = "PERDURE_CHAOS_CLIENT"

AGAIN_S: Final = 0.3
"""Between two tries of what the store was not there for."""

SHARED_EACH: Final = 8
"""Of so many orders, one is the shared lane's."""

REPEAT_SHARE: Final = 0.05
OTHER_INPUT_SHARE: Final = 0.03


class Settings(msgspec.Struct, frozen=True):
    """What a client is told."""

    seed: int
    name: str
    """The queue, the tag and the prefix of keys and threads."""
    lane: str
    testimony: str
    """The recorder's file."""
    at_once: int
    """Orders it has open at a time."""
    pause_s: float
    """Between two orders of one place."""


class Client:
    """One process's work."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self.settings = settings
        self.stopping = asyncio.Event()
        self.left, self.nth = unsettled(settings)

    async def work(self) -> None:
        """Settle what was left, and ask for more until stopped."""
        async with asyncio.TaskGroup() as group:
            for left in self.left:
                group.create_task(self._see_through(left))
            for _ in range(self.settings.at_once):
                group.create_task(self._ask_on())

    async def _ask_on(self) -> None:
        pause_s = self.settings.pause_s
        while not self.stopping.is_set():
            self.nth += 1
            await self._see_through(self._order(self.settings.lane, self.nth))
            if self.nth % SHARED_EACH == 0:
                await self._see_through(self._order(SHARED, self.nth // SHARED_EACH))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(0.5, 1.5)):
                    await self.stopping.wait()

    def _order(self, lane: str, nth: int) -> Order:
        return order(self.settings.seed, self.settings.name, lane=lane, nth=nth)

    async def _see_through(self, order: Order) -> None:
        """From asking to the end of the run."""
        await tell(asked(order))
        handle = await self._start(order)
        if handle is None:
            return
        if random.random() < REPEAT_SHARE:
            await self._start(order)
        if random.random() < OTHER_INPUT_SHARE:
            await self._start_with_other_input(order)
        state, value = await self._ended(handle)
        await tell(Told(*now(), order.key, number_of(handle), state, value))

    async def _start(self, order: Order) -> Handle[Any] | None:
        """Start it, however long the store is away; None if it was refused."""
        try:
            handle: Handle[Any] = await insist(lambda: self._ask(order))
        except (ThreadBusy, StartMismatch) as error:
            await tell(Refused(*now(), order.key, type(error).__name__))
            return None
        await tell(Started(*now(), order.key, number_of(handle)))
        return handle

    async def _start_with_other_input(self, order: Order) -> None:
        first, *others = order.args
        other = replace(order, args=(first + 1, *others))
        try:
            await insist(lambda: self._ask(other))
        except StartMismatch:
            await tell(Tested(*now(), order.key, refused=True))
        else:
            await tell(Tested(*now(), order.key, refused=False))

    async def _ask(self, order: Order) -> Handle[Any]:
        return await start(self.app, order, name=self.settings.name)

    async def _ended(self, handle: Handle[Any]) -> tuple[str, Any]:
        """The run's end, as a client is told it."""
        while True:
            try:
                return RunState.COMPLETED, await handle.result()
            except RunFailed as failed:
                return RunState.FAILED, failed.error.message
            except (RunHeld, StoreUnavailable):  # it is sent on by hand, or the store comes back
                await asyncio.sleep(AGAIN_S)


async def start(app: App, order: Order, *, name: str) -> Handle[Any]:
    """Start an order's run."""
    return await app.start(
        order.agent, *order.args, thread_id=order.thread_id, key=order.key, if_busy=order.if_busy, queue=name,
        priority=order.priority, delay=order.delay_s, tags=[name],
    )  # fmt: skip


async def insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try until the store is there."""
    while True:
        try:
            return await attempt()
        except StoreUnavailable:
            await asyncio.sleep(AGAIN_S)


def asked(order: Order) -> Asked:
    """The line that says what is asked for."""
    return Asked(
        *now(), order.key, order.lane, order.number, order.agent, order.args, order.thread_id, order.if_busy,
        order.delay_s, order.priority,
    )  # fmt: skip


def number_of(handle: Handle[Any]) -> int:
    """The store's number of a run."""
    number = parse_run_id(handle.run_id)
    assert number is not None
    return number


def unsettled(settings: Settings) -> tuple[list[Order], int]:
    """What this lane's clients asked for and never heard the end of, and the number of their last order. What was asked
    in the shared lane is everybody's: each successor settles all of it."""
    path = Path(settings.testimony)
    orders, started, told, refused = dict[str, Order](), set[str](), set[str](), set[str]()
    last = 0
    for line in read(path) if path.exists() else ():
        match line:
            case Asked(lane=lane) if lane in (settings.lane, SHARED):
                nth = int(line.key.rpartition("/")[2])
                orders[line.key] = order(settings.seed, settings.name, lane=lane, nth=nth)
                last = max(last, nth) if lane == settings.lane else last
            case Started():
                started.add(line.key)
            case Told():
                told.add(line.key)
            case Refused():
                refused.add(line.key)
    done = told | (refused - started)
    return [order for key, order in orders.items() if key not in done], last


async def main() -> None:
    """Work until SIGTERM, then settle."""
    client = Client(app, msgspec.json.decode(os.environ[SETTINGS], type=Settings))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, client.stopping.set)
    print(f"lane {client.settings.lane}{BEGUN}orders", flush=True)
    await insist(app.__aenter__)
    try:
        await client.work()
    finally:
        await app.close()


if __name__ == "__main__":
    run_loop(main())
