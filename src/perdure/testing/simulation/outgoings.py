"""The outbox and the meters at the end: what is on record was handed over, and what was handed over is on record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from perdure.core.codec import codec_for
from perdure.core.deliveries import OPEN, Delivery, DeliveryState
from perdure.core.meters import UNIT, quantity
from perdure.core.records import Kind, run_id
from perdure.core.snapshot import spilled
from perdure.core.states import TERMINAL
from perdure.testing.simulation.couriers import HEAVY
from perdure.testing.simulation.recipients import BILLS, Recipients
from perdure.testing.simulation.rules.look import Look
from perdure.testing.simulation.rules.tries import step_of
from perdure.testing.simulation.witness import Witness

BY: Final = "deliver:"


def settle_outgoings(witness: Witness, recipients: Recipients) -> None:
    """Everything has ended: say what does not fit."""
    look = witness.look
    for wrong in (
        *_of_records(witness),
        *_of_sightings(look, recipients),
        *_of_bills(look, recipients),
        *_of_uses(witness),
    ):
        witness.blame(wrong)


def still_open(look: Look) -> list[Delivery]:
    """What is not delivered, and not given up."""
    return [row for row in look.deliveries.values() if row.state in OPEN]


def _of_records(witness: Witness) -> Iterator[str]:
    """Every record of a delivery has a row, and every row that is no bill has a record."""
    look = witness.look
    known = {(row.sink, row.key): row for row in look.deliveries.values()}
    recorded: set[tuple[str, str]] = set()
    for id, log in look.logs.items():
        for row in log.values():
            step = step_of(row.key)
            if row.kind is not Kind.STEP or row.failed or not step.startswith(BY):
                continue
            this = step.removeprefix(BY), codec_for(str).decode(row.payload)
            recorded.add(this)
            if this not in known:
                yield f"run {run_id(id)} has {row.key!r} on record, and there is no delivery {this}"
    for this, delivery in known.items():
        if not delivery.bill and this not in recorded:
            yield f"delivery d{delivery.id} {this} of run {run_id(delivery.run)} is on nobody's record"


def _of_sightings(look: Look, recipients: Recipients) -> Iterator[str]:
    """What was delivered was seen, as it is, under its key; what was seen was handed over by somebody."""
    known = {(row.sink, row.key): row for row in look.deliveries.values()}
    for row in look.deliveries.values():
        seen = recipients.sightings.get((row.sink, row.key), [])
        if row.state is DeliveryState.DELIVERED and not seen:
            yield f"delivery d{row.id} ({row.key!r} to {row.sink}) is delivered, and nobody has seen it"
        if row.state is DeliveryState.DEAD and row.error is None:
            yield f"delivery d{row.id} is dead, and nothing says why"
    for this, seen in recipients.sightings.items():
        delivery = known.get(this)
        if delivery is None:
            yield f"{this[0]} has seen {this[1]!r}, which is not in the outbox"
            continue
        for each in seen:
            item = each.item
            of_row = (f"d{delivery.id}", delivery.partition, run_id(delivery.run), delivery.thread_id, delivery.agent)
            if (item.id, item.partition, item.run_id, item.thread_id, item.agent) != of_row:
                yield f"{this[0]} has seen {item}, which is delivery d{delivery.id}"
            if item.payload != seen[0].item.payload:
                yield f"{this[0]} has seen two contents of {this[1]!r}: {item.payload} and {seen[0].item.payload}"
            if not _is_content(delivery, item.payload):
                yield f"{this[0]} has seen {item.payload} as {this[1]!r}, and handed over was {delivery.payload!r}"


def _is_content(delivery: Delivery, payload: Any) -> bool:
    """Whether it is what the run has handed over; of what is a blob, whether all of it has come."""
    if delivery.bill:
        return bool(payload["type"] == "bill")
    if spilled(delivery.payload) is not None:
        return len(payload["words"]) == HEAVY
    return bool(payload == codec_for(Any).decode(delivery.payload))


def _of_bills(look: Look, recipients: Recipients) -> Iterator[str]:
    """A bill says how its run has ended, and what the claims since the bill before have used."""
    for run in look.runs.values():
        of_run = (row for row in look.deliveries.values() if row.bill and row.run == run.id)
        rows = sorted(of_run, key=lambda row: (row.fence, row.id))
        before = -1
        for number, row in enumerate(rows, 1):
            for seen in recipients.sightings.get((BILLS, row.key), [])[:1]:
                said = seen.item.payload
                expected = _used(look, run.id, before, row.fence)
                if said["usage"] != expected or (said["number"], said["state"]) != (number, row.payload.decode()):
                    yield f"bill {number} of run {run_id(run.id)} says {said}; its meters say {expected}"
            before = row.fence
        if rows and run.state in TERMINAL and rows[-1].payload.decode() != run.state:
            yield f"run {run_id(run.id)} is {run.state}, and its last bill says {rows[-1].payload.decode()}"
        if rows and run.state in TERMINAL and (left := _used(look, run.id, before, run.fence + 1_000_000)):
            yield f"run {run_id(run.id)} has used {left} that no bill of it says"


def _used(look: Look, run: int, after: int, until: int) -> dict[str, str]:
    sums: dict[str, int] = {}
    for row in look.meters.get(run, {}).values():
        if after < row.fence <= until:
            sums[row.name] = sums.get(row.name, 0) + row.quantity
    return {name: str(quantity(total)) for name, total in sorted(sums.items())}


def _of_uses(witness: Witness) -> Iterator[str]:
    """The meters of what is on record are those of what it says: a crash changes no sum (its result has the number that
    says what a body has used)."""
    look = witness.look
    for id, log in look.logs.items():
        for at, row in log.items():
            copied = at in witness.annals.forked_with.get(id, ())
            by_itself = step_of(row.key) in METERED and "~" not in row.key
            if row.kind is not Kind.STEP or row.failed or copied or not by_itself:
                continue
            number = _number(row.payload)
            expected = [("usd", (number % 5 + 1) * UNIT // 10), ("tokens", number % 4 * 100 * UNIT)]
            there = [
                (meter.name, meter.quantity)
                for place, meter in sorted(look.meters.get(id, {}).items())
                if place[:4] == (*at, row.attempt, row.fence)
            ]
            if there != expected:
                yield f"run {run_id(id)} has used {there} in {row.key!r}, and its record says {expected}"


METERED: Final = frozenset({"think", "guess", "risky", "hasty", "tally_up"})


def _number(payload: bytes) -> int:
    said: Any = codec_for(Any).decode(payload)
    return int(said["number"])
