"""The outbox, bills, meters and budgets, broken in one place at a time: in the runtime, and in the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace as with_other
from typing import Any

import msgspec

import perdure
from perdure.core.budgets import Amounts, lacking
from perdure.core.changes import AppendCheckpoint, RecordAttempt
from perdure.core.deliveries import DeliveryFilter, DeliveryState, Settlement
from perdure.core.records import RunState
from perdure.core.requests import Bounce
from perdure.runtime import billing, budgeting, dispatching, relay, stepping
from perdure.runtime.frames import agent_frame
from perdure.runtime.log import Log
from perdure.runtime.relay import Relay
from perdure.store.memory import budgets, meters
from perdure.store.memory.outbox import Outbox
from perdure.store.memory.tables import Tables
from perdure.testing.simulation.orders import Theme
from tests.simulation.breaking import Breaking, Mutation, replaced, wrapped

# -- the relay -------------------------------------------------------------------------------------------------------


async def _said_too_early(original: Any, self: Any, delivery: Any) -> None:
    self._settlements.append(Settlement(delivery.id, delivery.attempts, DeliveryState.DELIVERED))
    self._wake.set()
    await original(self, delivery)


def _taken_for_delivered(original: Any, self: Any, delivery: Any, *args: Any) -> Settlement:
    original(self, delivery, *args)
    return Settlement(delivery.id, delivery.attempts, DeliveryState.DELIVERED)


def _launched_twice(original: Any, self: Any, delivery: Any) -> None:
    original(self, delivery)
    original(self, delivery)


async def _waits_for_a_hint(wake: asyncio.Event, pause_s: float) -> bool:
    return await wake.wait()


async def _without_a_limit(original: Any, self: Any, delivery: Any) -> None:
    sinks = self._tenure.sinks
    sinks[delivery.sink].timeout_s = 100_000.0
    await original(self, delivery)


async def _given_up_at_once(original: Any, self: Any, delivery: Any) -> None:
    await original(self, delivery)
    last = self._settlements[-1]
    if last.delivery == delivery.id and last.state is DeliveryState.QUEUED:
        self._settlements[-1] = msgspec.structs.replace(last, state=DeliveryState.DELIVERED)


async def _not_kept(original: Any, self: Any) -> Any:
    known, self._in_hand = self._in_hand, {id: row for id, row in self._in_hand.items() if row.attempts > 1}
    try:
        return await original(self)
    finally:
        self._in_hand = known | self._in_hand


async def _other_content(original: Any, self: Any, delivery: Any) -> Any:
    item = await original(self, delivery)
    return item if delivery.bill else with_other(item, payload=[item.payload, item.attempt])


# -- runs ------------------------------------------------------------------------------------------------------------


async def _waits_for_its_sink(original: Any, sink: str, payload: Any, **named: Any) -> str:
    key = str(await original(sink, payload, **named))
    store = agent_frame("a test").super_step.host.store
    while any(row.state is not DeliveryState.DELIVERED for row in await store.deliveries(DeliveryFilter(key=key))):
        await asyncio.sleep(0.5)
    return key


async def _unmetered(original: Any, at: Any, *args: Any) -> None:
    await original(at, *args[:4])


def _unspent(original: Any, at: Any, meters: Any, started_at: int, *, steps: int = 1) -> Any:
    return original(at, meters, started_at, steps=steps)._replace(spent=None)


async def _unreserved(*args: Any, **named: Any) -> None:
    """Nothing is reserved."""


def _whatever_flies(row: Any, wanted: Amounts, *, in_flight: bool = True) -> tuple[str, ...]:
    return lacking(row, wanted)


def _of_no_flight(row: Any, wanted: Amounts, *, in_flight: bool = True) -> tuple[str, ...]:
    return lacking(row, wanted, in_flight=False)


async def _none_earlier(*args: Any) -> list[int]:
    return []


# -- the store -------------------------------------------------------------------------------------------------------


def _lost_delivery(original: Any, self: Any, change: Any, run: Any, *, now: int) -> bool:
    return change.delivery.id % 3 != 0 and bool(original(self, change, run, now=now))


def _any_key(original: Any, self: Any, new: Any, run: Any, **named: Any) -> bool:
    self._keys.pop((new.sink, new.key), None)
    return bool(original(self, new, run, **named))


def _all_ready(original: Any, self: Any, lane: Any) -> None:
    original(self, lane)
    for each in self._open[lane]:
        self._set(self._rows[each], ready=True)


def _dead_stays(original: Any, self: Any, worker: int, said: Any, *, now: int) -> None:
    lane = None
    row = self._rows.get(said.delivery)
    if row is not None and said.state is DeliveryState.DEAD and (row.worker, row.attempts) == (worker, said.attempt):
        lane = self._open[row.sink, row.partition]
    original(self, worker, said, now=now)
    if lane is not None:
        for each in lane:
            self._set(self._rows[each], ready=False)


def _anybodys(original: Any, self: Any, worker: int, said: Any, *, now: int) -> None:
    row = self._rows.get(said.delivery)
    if row is not None and row.worker is not None:
        worker, said = row.worker, msgspec.structs.replace(said, attempt=row.attempts)
    original(self, worker, said, now=now)


def _kept_by_the_dead(original: Any, self: Any, worker: int, *, keep: Iterable[int] = (), **named: Any) -> None:
    if tuple(keep):
        original(self, worker, keep=keep, **named)


def _no_bill_for_cancelled(original: Any, self: Any, run: Any) -> None:
    if run.state is not RunState.CANCELLED:
        original(self, run)


def _metered_again(original: Any, tables: Any, change: Any, *, now: int) -> None:
    known = tables.meters[change.run]
    original(tables, change, now=now)
    again = isinstance(change, RecordAttempt) and change.attempt > 1 and change.meters
    for row in list(known.values()) if again else ():
        at = row.super_step, row.key, change.attempt, row.fence, row.number + 100
        known[at] = msgspec.structs.replace(row, attempt=change.attempt, number=row.number + 100)


def _granted(*args: Any) -> None:
    """There is always enough."""


def _refused(tables: Any, change: Any) -> Bounce | None:
    return Bounce.BUDGET if not budgets._is_done(tables, change) and change.run % 5 == 0 else None


def _lost_is_free(original: Any, tables: Any, row: Any) -> Any:
    seen = original(tables, row)
    return msgspec.structs.replace(seen, spent=row.spent)


def _kept_reserved(original: Any, tables: Any, change: AppendCheckpoint | RecordAttempt) -> None:
    at = change.run, change.super_step, change.key
    held = tables.accounts.reservations.get(at)
    original(tables, change)
    if held is not None and isinstance(change, AppendCheckpoint):
        tables.accounts.reservations[at] = held


def _nothing_withdrawn(original: Any, tables: Any, *args: Any, **named: Any) -> Any:
    known, tables.accounts.about = tables.accounts.about, {}
    try:
        return original(tables, *args, **named)
    finally:
        tables.accounts.about = known


def _nobody_woken(original: Any, tables: Any, *args: Any, **named: Any) -> Any:
    tables.wake_all = lambda *args: None
    try:
        return original(tables, *args, **named)
    finally:
        del tables.wake_all


def _not_inherited(original: Any, tables: Any, ask: Any, *, now: int) -> None:
    original(tables, msgspec.structs.replace(ask, parent=None), now=now)


def _only_given(original: Any, tables: Any, run: Any) -> Any:
    return original(tables, msgspec.structs.replace(run, agent="", tenant=None))


def _outbox(name: str, expected: str, breaking: Breaking) -> Mutation:
    return Mutation(name, expected, breaking, theme=Theme.OUTBOX)


def _budgets(name: str, expected: str, breaking: Breaking) -> Mutation:
    return Mutation(name, expected, breaking, theme=Theme.BUDGETS)


OUTBOX = (
    _outbox(
        "A delivery is said to be delivered before its sink has taken it",
        "nobody has seen it|came first in",
        wrapped(Relay, "_deliver", _said_too_early),
    ),
    _outbox(
        "A try that has failed is taken for a delivery",
        "nobody has seen it|came first in",
        wrapped(Relay, "_failed", _taken_for_delivered),
    ),
    _outbox(
        "A relay hands over twice what it has", "was not given that try", wrapped(Relay, "_launch", _launched_twice)
    ),
    _outbox(
        "A relay looks only when it hears a hint",
        "is due, and|after all take it|the storm",
        replaced(relay, "came", _waits_for_a_hint),
    ),
    _outbox(
        "A claim of deliveries whose answer was lost is not asked for again",
        "does not know|after all take it",
        replaced(relay, "UNSURE_S", 0.0),
    ),
    _outbox(
        "A sink that hangs is never given up",
        "after all take it",
        wrapped(Relay, "_deliver", _without_a_limit),
    ),
    _outbox(
        "A try that is to be repeated is delivered",
        "nobody has seen it|came first in",
        wrapped(Relay, "_deliver", _given_up_at_once),
    ),
    _outbox(
        "A relay does not say what it has in hand",
        "still at an earlier try",
        wrapped(Relay, "_claim", _not_kept),
    ),
    _outbox(
        "A relay takes all suspects at once",
        "suspects .* at the same time",
        replaced(Relay, "_suspects", lambda self: 100),
    ),
    _outbox("Each try has a content of its own", "two contents", wrapped(Relay, "_outgoing", _other_content)),
    _outbox(
        "A run waits for its sink", "after the storm|is not parked", wrapped(perdure, "deliver", _waits_for_its_sink)
    ),
    _outbox("A bill counts from the beginning", "its meters say", replaced(billing, "_earlier", _none_earlier)),
    _outbox("A delivery is not written with its record", "is not there", wrapped(Outbox, "put", _lost_delivery)),
    _outbox("A key is taken twice", "two deliveries have one key|came by", wrapped(Outbox, "_put", _any_key)),
    _outbox("All of a lane are ready", "ready True, not False", wrapped(Outbox, "_give_turn", _all_ready)),
    _outbox("A dead delivery holds up its lane", "ready False, not True", wrapped(Outbox, "settle", _dead_stays)),
    _outbox("A settlement counts, whoever says it", "became", wrapped(Outbox, "settle", _anybodys)),
    _outbox(
        "A worker that is gone keeps its deliveries",
        "state .*delivering.*, not|after all take it",
        wrapped(Outbox, "give_back", _kept_by_the_dead),
    ),
    _outbox("A cancelled run has no bill", "has 0 bills", wrapped(Tables, "_bill", _no_bill_for_cancelled)),
    _budgets("A try that has failed has used nothing", "is on record", wrapped(stepping, "record_attempt", _unmetered)),
    _budgets("What is used is not spent", "spends None", wrapped(stepping, "use_of", _unspent)),
    _budgets("A step that fails again is metered again", "too many", wrapped(meters, "file", _metered_again)),
    _budgets("A step reserves nothing", "nothing is reserved for it", replaced(stepping, "reserve", _unreserved)),
    _budgets(
        "A try that its code has cancelled keeps what it has reserved",
        "is still reserved for",
        replaced(stepping, "file_cut_off", lambda *args, **named: None),
    ),
    _budgets(
        "A try that the end of its code cuts off keeps what it has reserved",
        "is still reserved for",
        replaced(Log, "hears", property(lambda at: at.ending is None)),
    ),
    _budgets("An effect reserves nothing", "nothing is reserved for it", replaced(dispatching, "reserve", _unreserved)),
    _budgets(
        "A run asks for more though only what is in flight is in its way",
        "which has enough",
        replaced(budgeting, "lacking", _whatever_flies),
    ),
    _budgets("There is always enough", "that there is enough", replaced(budgets, "bounce", _granted)),
    _budgets("What is in flight does not count", "that there is enough", replaced(budgets, "lacking", _of_no_flight)),
    _budgets("Some are refused whatever is left", "not enough; what lacks", replaced(budgets, "bounce", _refused)),
    _budgets("What a lost claim had reserved is free again", "says that", wrapped(budgets, "seen", _lost_is_free)),
    _budgets("A record does not release what was reserved", "says that", wrapped(budgets, "settle", _kept_reserved)),
    _budgets(
        "Setting a budget leaves the questions about it",
        "asks about budget",
        wrapped(budgets, "set_limits", _nothing_withdrawn),
    ),
    _budgets(
        "Setting a budget wakes nobody",
        "which has come|after the storm",
        wrapped(budgets, "set_limits", _nobody_woken),
    ),
    _budgets(
        "A question is asked about a budget that was set since",
        "asks about budget",
        replaced(budgets, "stands", lambda tables, question: True),
    ),
    _budgets(
        "A child counts against nothing of its parent's", "counts against", wrapped(budgets, "give", _not_inherited)
    ),
    _budgets(
        "A claim forgets the budgets of agents and tenants", "its claim says", wrapped(budgets, "of_run", _only_given)
    ),
)
