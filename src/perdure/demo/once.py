"""The smallest scene of an effect: the same tool is called twice, with a `kill -9` between, and charges once.

The next worker finds the intent without an outcome, sends the same key again, and is answered from the service's book.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from perdure.client.effects import EffectEventInfo, EffectInfo
from perdure.core.effects import EffectState
from perdure.demo.billing import Entry, Line, Receipt
from perdure.demo.processes import APP
from perdure.demo.promise import Promise
from perdure.demo.reconciliation import money, was_unknown
from perdure.demo.screen import PlainScreen
from perdure.demo.short import ACCOUNT, CENTS, WAIT_S, Short, playing, print_book, print_verdict

QUEUE: Final = "once"


async def show(out: Console, folder: Path, store: str) -> int:
    """Play it and say what happened; returns the exit code."""
    async with playing(folder, store, PlainScreen(out), app=APP, queue=QUEUE) as scene:
        run_id, receipt = await play(scene)
        found = await scene.client.effects(run_id=run_id)
        effects = [await scene.client.effect_info(effect.id) for effect in found]
    lines = scene.billing.lines()
    out.print()
    print_ledger(out, effects)
    print_book(out, lines)
    where = [f"perdure effects show {effect.id} --store {shlex.quote(scene.client.store_name)}" for effect in effects]
    return print_verdict(out, promises(receipt, effects, lines), where)


async def play(scene: Short) -> tuple[str, Receipt]:
    """One run, two workers, one kill; returns the run and its receipt."""
    from perdure.demo.agents import pay

    handle = await scene.client.start(scene.client.agent(pay.fn), ACCOUNT, CENTS, queue=QUEUE)
    scene.tell(f"run {handle.run_id} is to charge {ACCOUNT} {money(CENTS)}, once")
    scene.hire()
    await scene.kill_in_between()
    receipt: Receipt = await handle.result(timeout=WAIT_S)
    scene.tell(f"the run has its receipt: {receipt.receipt}, over {money(receipt.cents)}")
    return handle.run_id, receipt


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


def print_ledger(out: Console, effects: list[EffectInfo]) -> None:
    """What the store has, write by write."""
    for effect in effects:
        out.print(Text(f"The store's effect {effect.id}, {effect.name}, key {effect.idempotency_key}", style="bold"))
        for event in effect.events:
            out.print(Text(f"    {event_line(event)}"), soft_wrap=True)


def event_line(event: EffectEventInfo) -> str:
    """A write to the effect's row."""
    why = f": {event.note}" if event.note else ""
    return f"{event.state:<10} try {event.attempt}, by {event.worker or event.by}{why}"
