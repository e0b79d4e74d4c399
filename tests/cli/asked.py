"""A store on a SQLite file in which agents wait for people, for messages, for a time and for each other, made through
the store's own verbs; and the ids of what is in it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from perdure import App
from perdure.core.codec import encode
from perdure.core.digests import digest64
from perdure.core.failures import cancellation
from perdure.core.records import Claimed, RunState, WaitKind, run_id
from perdure.testing.conformance.harness import Bench, Harness, answer, bury, cancelled, close, parent, park, step, wait
from tests.runtime.desk import Desk

DAY_S: Final = 86_400.0


@dataclass
class Decision:
    """An answer with a type of its own."""

    buy: bool
    limit: int = 0


class Asked(msgspec.Struct):
    """What is in the store, by what it is there for."""

    url: str
    order: str = ""
    """A parked run: its step `search` is recorded, its child has completed, and it has asked `approve`."""
    child: str = ""
    approve: str = ""
    """Open, for alice, for two days: a `Decision`."""
    free: str = ""
    """Open, on a thread of its own; anything will do. `text`, `pick` and `flag` take a text, `yes` or `no`, a bool."""
    text: str = ""
    pick: str = ""
    flag: str = ""
    two: tuple[str, str] = ("", "")
    """Open, both on thread `two`."""
    answered: str = ""
    expired: str = ""
    withdrawn: str = ""
    reader: str = ""
    """A parked run that waits for an `Order`, or an hour."""
    dead: str = ""
    """A dead letter of its thread, whose mailbox holds two notes."""
    timer: str = ""
    """A parked run that waits for tomorrow."""
    boss: str = ""
    """A parked run that waits for `worker`, a run that nobody has begun."""
    worker: str = ""
    gone: str = ""
    """A run that was cancelled while it had asked `withdrawn`."""


@dataclass
class Writer:
    """Files records with times of today."""

    desk: Desk
    now: int = 0

    def step(self, claimed: Claimed, key: str, value: Any, seq: int, **fields: Any) -> Any:
        times = {"started_at": self.now, "ended_at": self.now + 120_000}
        return step(claimed, key, encode(value), seq=seq, **(times | fields))

    def close(self, claimed: Claimed, key: str, value: Any, seq: int, **fields: Any) -> Any:
        times = {"started_at": self.now + 300_000, "ended_at": self.now + 300_000, "seq": seq}
        return close(claimed, key, encode(value), record=times | fields)


async def make(url: str) -> Asked:
    """Let it all happen."""
    app = App("asked", store=url)
    async with app:
        desk = Desk(app, Bench(Harness(), (await app._client()).store))
        made = Asked(url)
        writer = Writer(desk, await desk.bench.store.now_us())
        await _order(desk, writer, made)
        made.free, _ = await desk.asked("free", {"what": "anything"})
        made.text, _ = await desk.asked("text", "Your name?\nAll of it.", schema=str)
        made.pick, _ = await desk.asked("pick", "Shall I?", schema=Literal["yes", "no"])
        made.flag, _ = await desk.asked("flag", "Shall I?", schema=bool, agent="flagger")
        worker, claimed = await desk.bench.begin("two")
        made.two = (await desk.ask(worker, claimed, "1/a", name="a"), await desk.ask(worker, claimed, "2/b", name="b"))
        await desk.bench.commit(worker, park(claimed))
        await _closed(desk, made)
        await _mail(desk, made)
        await _others(desk, made)
    return made


async def _order(desk: Desk, writer: Writer, made: Asked) -> None:
    bench = desk.bench
    worker, claimed = await bench.begin("orders/7", agent="order", payload=encode([["lamp"], {}]), tenant="acme")
    child = await bench.start("tea", agent="child", parent=parent(claimed, worker), payload=encode([[], {}]))
    await bench.commit(
        worker,
        writer.step(claimed, "search", ["lamp", "LAMP"], 1),
        writer.step(claimed, "start:child", [child, "tea"], 2, digest=5),
        wait(claimed, "result:child", WaitKind.RUN, target=child),
        park(claimed),
    )
    theirs = await bench.claim_one(worker, agents=("child",))
    await bench.commit(worker, msgspec.structs.replace(cancelled(theirs, encode("tea!")), outcome=RunState.COMPLETED))
    claimed = await bench.claim_one(worker, agents=("order",))
    digest = digest64(((run_id(child),), {}))
    await bench.commit(worker, writer.close(claimed, "result:child", "tea!", 3, digest=digest))
    made.approve = await desk.ask(
        worker, claimed, "approve", payload={"buy": "lamp", "cents": 1_900}, schema=Decision, name="approve",
        assignee="alice", delay_s=2 * DAY_S,
    )  # fmt: skip
    await bench.commit(worker, park(claimed))
    made.order, made.child = run_id(claimed.run), run_id(child)


async def _closed(desk: Desk, made: Asked) -> None:
    made.answered, _ = await desk.asked("done", "Done?", name="done")
    await desk.bench.store.answer(answer(int(made.answered[1:]), encode(True), "bob"))
    worker, claimed = await desk.bench.begin("late", agent="late")
    made.expired = await desk.ask(worker, claimed, delay_s=0, name="late", on_timeout="cancel")
    made.withdrawn, claimed = await desk.asked("gone", "Still there?", agent="gone")
    await desk.bench.cancel(claimed.run, "changed my mind", encode(None))
    worker = await desk.bench.worker()
    claimed = await desk.bench.claim_one(worker, agents=("gone",))
    now = await desk.bench.store.now_us()
    ended = cancellation("changed my mind")
    await desk.bench.store.commit(worker, [cancelled(claimed, ended, waited=True, ended_at=now)])
    made.gone = run_id(claimed.run)


async def _mail(desk: Desk, made: Asked) -> None:
    worker, claimed = await desk.bench.begin("mail", agent="reader")
    await desk.bench.send("mail", "Order", payload=encode({"nope": 1}))
    (letter,) = await desk.bench.mailbox("mail")
    await desk.bench.commit(
        worker, bury(claimed, letter.seq, "it has no item"),
        wait(claimed, "receive", WaitKind.MESSAGE, labels=("Order",), delay_s=3_600), park(claimed),
    )  # fmt: skip
    await desk.bench.send("mail", "note", payload=encode("hello"))
    await desk.bench.send("mail", "note", payload=encode({"from": "a run"}), sender=made.order)
    made.reader, made.dead = run_id(claimed.run), f"m{letter.id}"


async def _others(desk: Desk, made: Asked) -> None:
    _, claimed = await desk.bench.parked("timer", wait(key="sleep", delay_s=1.5 * DAY_S), agent="sleeper")
    made.timer = run_id(claimed.run)
    worker, claimed = await desk.bench.begin("boss", agent="boss")
    theirs = await desk.bench.start("hand", agent="hand", parent=parent(claimed, worker))
    await desk.bench.commit(worker, wait(claimed, "result:hand", WaitKind.RUN, target=theirs), park(claimed))
    made.boss, made.worker = run_id(claimed.run), run_id(theirs)


def build(path: Path) -> Asked:
    """The file, and what is in it."""
    return asyncio.run(make(f"sqlite:///{path}"))
