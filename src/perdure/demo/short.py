"""A short scene: one run, one charge, and a `kill -9` right after it.

The billing service holds its first answer back. So the worker is killed when the charge is made and on disk, and nobody
but the service knows of it. What comes then is done by another worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from perdure.app import App
from perdure.demo.billing import Entry, Line
from perdure.demo.brief import Brief
from perdure.demo.playbill import print_point, print_promise
from perdure.demo.processes import BillingService, Staff
from perdure.demo.promise import Promise
from perdure.demo.reconciliation import money
from perdure.demo.screen import PlainScreen
from perdure.errors import UsageError

ACCOUNT: Final = "ann"
CENTS: Final = 1900

HOLD_S: Final = 120.0
"""How long the service holds its first answer back; whoever waits for it is dead before."""

LOOK_S: Final = 0.02
WAIT_S: Final = 60.0


class Short:
    """Who plays."""

    def __init__(self, client: App, staff: Staff, billing: BillingService, screen: PlainScreen) -> None:
        self.client = client
        self.staff = staff
        self.billing = billing
        self.tell = screen.tell

    def hire(self, *, instead: bool = False) -> None:
        """Start a worker."""
        worker = self.staff.hire()
        place = " in its place" if instead else ""
        self.tell(f"{worker.name} started{place} (process {worker.pid})")

    async def kill_in_between(self) -> None:
        """Kill the worker when the charge is made; another one takes its place."""
        await self._charge_made()
        self.tell("the service has charged, and its file is on disk; it has not answered yet")
        (worker,) = self.staff.alive
        worker.kill()
        self.tell(f"kill -9 {worker.name}: nobody but the service knows of the charge", style="bold red")
        self.hire(instead=True)

    async def _charge_made(self) -> None:
        """Until the charge is in the book."""
        async with asyncio.timeout(WAIT_S):
            while not self.billing.lines():
                self.check()
                await asyncio.sleep(LOOK_S)

    def check(self) -> None:
        """Give up where waiting helps no more."""
        for process in (*self.staff.workers, *self.billing.processes):
            if process.broken:
                raise UsageError(f"{process.name} ended by itself; its log says:\n{process.last_words()}")


@asynccontextmanager
async def playing(folder: Path, store: str, screen: PlainScreen, *, app: str, queue: str) -> AsyncIterator[Short]:
    """The scene, with its service open and no worker yet; in the end all processes end."""
    client = App("perdure-demo", store=store)
    screen.facts([("store", client.store_name), ("output", str(folder))])
    billing = BillingService(folder)
    with screen:
        url = await billing.begin(["--lose-every", "0", "--hold-s", str(HOLD_S)])
        environ = {**Brief(billing=url).environ(), "PERDURE_STORE": store}
        staff = Staff(folder, app=app, queue=queue, environ=environ)
        try:
            async with client:
                yield Short(client, staff, billing, screen)
        finally:
            await asyncio.to_thread(staff.dismiss)
            await asyncio.to_thread(billing.end)


def print_book(out: Console, lines: list[Line]) -> None:
    """The service's file, line by line."""
    out.print(Text("The service's file", style="bold"))
    for line in lines:
        answered = "answered from the book" if line.entry is Entry.REPEAT else f"{line.account} {money(line.cents)}"
        out.print(Text(f"    {line.entry:<10} key {line.key}  {line.receipt}, {answered}"), soft_wrap=True)
    out.print()


def print_verdict(out: Console, told: list[Promise], where: list[str], remark: str | None = None) -> int:
    """Each promise, what is to be said of them, and where to look further; returns the exit code."""
    for promise in told:
        print_promise(out, promise)
    if remark is not None:
        print_point(out, "·", "", remark)
    out.print()
    for command in where:
        out.print(Text.assemble(("look at     ", "dim"), command), soft_wrap=True)
    return 0 if all(promise.holds for promise in told) else 1
