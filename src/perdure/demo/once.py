"""The smallest scene: the same tool is called twice, with a `kill -9` between, and charges once.

The billing service holds its first answer back. So the worker is killed when the charge is made and on disk, and
nobody but the service knows of it. The next worker finds the intent without an outcome, sends the same key again, and
is answered from the book.
"""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from perdure.app import App
from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.core.effects import EffectState
from perdure.demo.billing import Entry, Line, Receipt
from perdure.demo.brief import Brief
from perdure.demo.playbill import print_promise
from perdure.demo.processes import BillingService, Staff
from perdure.demo.promise import Promise
from perdure.demo.reconciliation import money, was_unknown
from perdure.demo.screen import PlainScreen
from perdure.errors import UsageError
from perdure.testing.chaos.processes import Child

QUEUE: Final = "once"
ACCOUNT: Final = "ann"
CENTS: Final = 1900

HOLD_S: Final = 120.0
"""How long the service holds its first answer back; whoever waits for it is dead before."""

LOOK_S: Final = 0.02
WAIT_S: Final = 60.0


async def show(out: Console, folder: Path, store: str) -> int:
    """Play it and say what happened; returns the exit code."""
    screen = PlainScreen(out)
    screen.facts([("store", store), ("output", str(folder))])
    out.print()
    billing = BillingService(folder)
    with screen:
        url = await billing.begin(["--lose-every", "0", "--hold-s", str(HOLD_S)])
        environ = {**Brief(billing=url).environ(), "PERDURE_STORE": store}
        staff = Staff(folder, queue=QUEUE, environ=environ)
        try:
            async with App("perdure-demo", store=store) as client:
                receipt = await play(client, staff, billing, screen)
                effects = [await client.effect_info(effect.id) for effect in await client.effects()]
        finally:
            await asyncio.to_thread(staff.dismiss)
            await asyncio.to_thread(billing.end)
    out.print()
    told = promises(receipt, effects, billing.lines())
    print_ledger(out, effects, billing.lines())
    for promise in told:
        print_promise(out, promise)
    out.print()
    for effect in effects:
        where = f"perdure effects show {effect.id} --store {shlex.quote(store)}"
        out.print(Text.assemble(("look at     ", "dim"), where), soft_wrap=True)
    return 0 if all(promise.holds for promise in told) else 1


async def play(client: App, staff: Staff, billing: BillingService, screen: PlainScreen) -> Receipt:
    """One run, two workers, one kill; returns the receipt."""
    from perdure.demo.agents import pay

    handle = await client.start(client.agent(pay.fn), ACCOUNT, CENTS, queue=QUEUE)
    screen.tell(f"run {handle.run_id} is to charge {ACCOUNT} {money(CENTS)}, once")
    first = staff.hire()
    screen.tell(f"{first.name} started (process {first.pid})")
    await charge_made(billing, first)
    screen.tell("the service has charged, and its file is on disk; it has not answered yet")
    first.kill()
    screen.tell(f"kill -9 {first.name}: nobody but the service knows of the charge", style="bold red")
    second = staff.hire()
    screen.tell(f"{second.name} started in its place (process {second.pid})")
    receipt: Receipt = await handle.result(timeout=WAIT_S)
    screen.tell(f"the run has its receipt: {receipt.receipt}, over {money(receipt.cents)}")
    return receipt


async def charge_made(billing: BillingService, worker: Child) -> None:
    """Until the charge is in the book."""
    async with asyncio.timeout(WAIT_S):
        while not billing.lines():
            for process in (worker, *billing.processes):
                if process.broken:
                    raise UsageError(f"{process.name} ended by itself; its log says:\n{process.last_words()}")
            await asyncio.sleep(LOOK_S)


# -- what is shown --------------------------------------------------------------------------------------------------


def promises(receipt: Receipt, effects: list[EffectInfo], lines: list[Line]) -> list[Promise]:
    """Both calls and the one effect, by the two files."""
    charges = [line for line in lines if line.entry is Entry.CHARGE]
    calls = sum(effect.attempt for effect in effects)
    return [
        Promise(calls == len(lines) == 2, f"the tool was called {calls} times, and the service {len(lines)} times"),
        Promise(len(charges) == 1, f"the service's file has {len(charges)} charge"),
        Promise(
            len(effects) == 1 and effects[0].state is EffectState.DONE and was_unknown(effects[0].events),
            f"the store has {len(effects)} effect, which was unknown, and is {effects[0].state}",
        ),
        Promise(
            [line.receipt for line in charges] == [receipt.receipt],
            f"the run has the first call's receipt: {receipt.receipt}",
        ),
    ]


def print_ledger(out: Console, effects: list[EffectInfo], lines: list[Line]) -> None:
    """What each file has, line by line."""
    for effect in effects:
        out.print(Text(f"The store's effect {effect.id}, {effect.name}, key {effect.idempotency_key}", style="bold"))
        for event in effect.events:
            out.print(Text(f"    {event_line(event)}"), soft_wrap=True)
    out.print(Text("The service's file", style="bold"))
    for line in lines:
        answered = "answered from the book" if line.entry is Entry.REPEAT else f"{line.account} {money(line.cents)}"
        out.print(Text(f"    {line.entry:<10} key {line.key}  {line.receipt}, {answered}"), soft_wrap=True)
    out.print()


def event_line(event: EffectEventInfo) -> str:
    """A write to the effect's row."""
    why = f": {event.note}" if event.note else ""
    return f"{event.state:<10} try {event.attempt}, by {event.worker or event.by}{why}"
