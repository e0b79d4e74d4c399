"""The smallest scene of the outbox: a tool is called twice, its delivery tried twice, and one charge made.

Both calls are of one order, so the outbox has one delivery, and the run ends without waiting for it. The worker is
killed when the service has charged and nobody has recorded that. So another worker's relay delivers it again, under the
same key, and the service answers from its book.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from perdure.client.deliveries import DeliveryInfo
from perdure.core.deliveries import OPEN, DeliveryState
from perdure.demo.billing import Entry, Line
from perdure.demo.promise import Promise
from perdure.demo.reconciliation import money
from perdure.demo.screen import PlainScreen
from perdure.demo.short import ACCOUNT, CENTS, LOOK_S, WAIT_S, Short, playing, print_book, print_verdict

APP: Final = "perdure.demo.shop:app"
QUEUE: Final = "outbox"

HONESTLY: Final = "once, because this service charges a key once; the outbox by itself delivers at least once"


@dataclass(frozen=True, slots=True)
class Said:
    """What each side says in the end."""

    keys: tuple[str, ...]
    """What the tool's calls were told, in the run's result."""
    records: int
    """How many calls are in the run's log."""
    deliveries: tuple[DeliveryInfo, ...]
    lines: tuple[Line, ...]


async def show(out: Console, folder: Path, store: str) -> int:
    """Play it and say what happened; returns the exit code."""
    async with playing(folder, store, PlainScreen(out), app=APP, queue=QUEUE) as scene:
        said = await play(scene, f"order-{folder.name}")
    out.print()
    print_outbox(out, said)
    print_book(out, list(said.lines))
    where = [
        f"perdure deliveries show {each.id} --store {shlex.quote(scene.client.store_name)}" for each in said.deliveries
    ]
    return print_verdict(out, promises(said), where, HONESTLY)


async def play(scene: Short, order: str) -> Said:
    """One run, two workers, one kill."""
    from perdure.demo.shop import BILLING, sell

    client = scene.client
    handle = await client.start(client.agent(sell.fn), order, ACCOUNT, CENTS, queue=QUEUE)
    scene.tell(f"run {handle.run_id} is to charge {ACCOUNT} {money(CENTS)} for {order}, once")
    scene.hire()
    keys = await handle.result(timeout=WAIT_S)
    scene.tell(f"the model has called the tool {len(keys)} times, and the run has ended: it waits for no sink")
    await scene.kill_in_between()
    deliveries = await settled(scene, handle.run_id)
    scene.tell(f"the delivery is {', '.join(each.state for each in deliveries)}")
    log = await handle.history()
    records = sum(row.key.split("#")[0] == f"deliver:{BILLING}" for row in log)
    return Said(tuple(keys), records, tuple(deliveries), tuple(scene.billing.lines()))


async def settled(scene: Short, run_id: str) -> list[DeliveryInfo]:
    """The run's deliveries, once none is under way."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await scene.client.deliveries(run_id=run_id)
            if not any(each.state in OPEN for each in found):
                return found
            scene.check()
            await asyncio.sleep(LOOK_S)


# -- what is shown --------------------------------------------------------------------------------------------------


def promises(said: Said) -> list[Promise]:
    """Both calls, both tries and the one charge, by the two files."""
    charges = [line for line in said.lines if line.entry is Entry.CHARGE]
    keys, theirs = set(said.keys), {line.key for line in said.lines}
    tries = sum(each.attempts for each in said.deliveries)
    states = [each.state for each in said.deliveries]
    return [
        Promise(
            len(said.keys) == said.records == 2 and len(keys) == 1,
            f"the tool was called {len(said.keys)} times, each on record, under {len(keys)} key",
        ),
        Promise(
            states == [DeliveryState.DELIVERED] and tries == 2,
            f"the store has {len(states)} delivery, tried {tries} times, {', '.join(states)}",
        ),
        Promise(
            len(said.lines) == tries and theirs == {each.key for each in said.deliveries} == keys,
            f"the service was asked {len(said.lines)} times, under that key",
        ),
        Promise(len(charges) == 1, f"the service's file has {len(charges)} charge"),
    ]


def print_outbox(out: Console, said: Said) -> None:
    """What the store has."""
    for each in said.deliveries:
        out.print(Text(f"The store's delivery {each.id} to {each.sink}, key {each.key}", style="bold"))
        lane = f"lane {each.sink}/{each.partition}, place {each.seq}"
        out.print(
            Text(f"    {each.state:<10} after {each.attempts} tries; {lane}; payload {each.payload}"), soft_wrap=True
        )
