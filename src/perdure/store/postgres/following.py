"""What a batch writes beside the log: deliveries, meters, and what is reserved in budgets and counts against them.

A batch that has any of this is written by the statements that it would be without (`plain`), and in the same
transaction by a few more behind them (`FollowUp`), which these guard. They come in the order in which locks are taken:
lanes, then budgets. One of steps and reservations alone, which somebody waits for before each try of a step, is one
statement all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from perdure.core import limits
from perdure.core.budgets import Amounts
from perdure.core.changes import (
    AppendCheckpoint,
    Change,
    Deliver,
    EndRun,
    OpenWait,
    ParkRun,
    Place,
    RecordAttempt,
    Reserve,
    record_of,
)
from perdure.store.postgres.batches import Arguments, columns
from perdure.store.postgres.waits import opened

COLUMN_MAX: Final = 2**63 - 1
"""Of an argument: more is more than any budget has."""

RESERVE, RECORD, TRY = range(3)
"""What the function `spend` is told."""


class FollowUp(NamedTuple):
    """A statement behind those that write the batch's log."""

    statement: str
    arguments: Arguments


def is_plain(changes: Sequence[Change]) -> bool:
    """Whether the batch writes nothing but the log."""
    return not any(_has_more(change) for change in changes)


def _has_more(change: Change) -> bool:
    kind = type(change)
    if kind is AppendCheckpoint or kind is RecordAttempt:
        return bool(change.meters) or change.spent is not None  # type: ignore[union-attr]
    if kind is Deliver or kind is Reserve:
        return True
    if isinstance(change, EndRun):
        return change.reserves
    if isinstance(change, OpenWait):
        return change.interrupt is not None and change.interrupt.budget is not None
    record = record_of(change)
    return record is not None and (bool(record.meters) or record.spent is not None)


def plain(changes: Sequence[Change]) -> list[Change]:
    """What the batch would be without all this: of a delivery its record, and no reservation."""
    return [
        change.record if isinstance(change, Deliver) else change
        for change in changes
        if not isinstance(change, Reserve)
    ]


def ends_of_deliverers(changes: Sequence[Change]) -> list[EndRun]:
    """The ends of runs that hand something over in the same batch: a bill comes after that."""
    runs = {change.run for change in changes if isinstance(change, Deliver)}
    return [change for change in changes if isinstance(change, EndRun) and change.run in runs] if runs else []


def parks_of_askers(changes: Sequence[Change]) -> list[ParkRun]:
    """The parkings of runs that ask about a budget in the same batch: they come after that was looked at."""
    runs = {change.run for change in changes if isinstance(change, OpenWait) and _has_more(change)}
    return [change for change in changes if isinstance(change, ParkRun) and change.run in runs] if runs else []


def usage(changes: Sequence[Change]) -> list[FollowUp]:
    """What it has used, reserves, and asks about budgets; positions are those in the batch, as in all of these. All
    budgets are locked at once: those that questions are about are named to `spend` too, behind those that it counts,
    and the runs whose accounts it closes."""
    over = [change.run for change in changes if isinstance(change, EndRun) and change.reserves]
    meters, spending, questions = _meters(changes), _spending(changes), _questions(changes)
    found = [FollowUp("record_meters", meters)] if meters[0] else []
    if spending[0] or over:
        spending[-1] += questions[3]
        found.append(FollowUp("spend", [*spending, over]))
    return [*found, FollowUp("ask_about_budgets", questions)] if questions[0] else found


def _questions(changes: Sequence[Change]) -> Arguments:
    asked = [each for each in opened(changes) if each.interrupt is not None and each.interrupt.budget is not None]
    return columns(((o.run, o.super_step, o.key, *o.interrupt.budget) for o in asked), 5)  # type: ignore[union-attr, misc]


def using_arguments(changes: Sequence[Change]) -> Arguments:
    """What `append_using` takes after the arguments of `append`."""
    return [*_meters(changes), *_spending(changes)]


def deliveries(changes: Sequence[Change]) -> FollowUp | None:
    """What it hands over. Of two for one sink with one key the first counts."""
    first: dict[tuple[str, str], tuple[Any, ...]] = {}
    blobs: list[tuple[Any, ...]] = []
    for at, change in enumerate(changes):
        if isinstance(change, Deliver):
            d = change.delivery
            row = (d.id, change.run, change.fence, d.sink, d.partition, d.key, d.payload, at)
            first.setdefault((d.sink, d.key), row)
            blobs += ((d.id, change.thread, blob.digest, blob.data) for blob in d.blobs)
    if not first:
        return None
    return FollowUp("hand_over", [*columns(first.values(), 8), *columns(blobs, 4), limits.LANE_MAX])


def _meters(changes: Sequence[Change]) -> Arguments:
    rows = [
        (
            each.run,
            each.super_step,
            each.key,
            each.attempt,
            each.fence,
            number,
            meter.name,
            meter.quantity,
            meter.attributes,
        )
        for change in changes
        if (each := _metered(change)) is not None and each.meters
        for number, meter in enumerate(each.meters)
    ]
    return [*columns(rows, 9)]


def _metered(change: Change) -> AppendCheckpoint | RecordAttempt | None:
    return change if isinstance(change, RecordAttempt) else record_of(change)


def _spending(changes: Sequence[Change]) -> Arguments:
    """Reservations and what counts, in the order of the batch. Whether a step that reserves is on record is asked only
    where this very batch does not record it: then it would seem so."""
    rows: list[tuple[Any, ...]] = []
    budgets: list[int] = []
    later = _records(changes)
    for at, change in enumerate(changes):
        each = change if isinstance(change, Reserve) else _metered(change)
        if isinstance(each, Reserve):
            place = (each.run, each.super_step, each.key)
            kind, attempt, known = RESERVE, 0, later.get(place, -1) < at
            amounts, named = each.amounts, each.budgets
        elif each is not None and each.spent is not None:
            kind = TRY if isinstance(each, RecordAttempt) else RECORD
            attempt, known = each.attempt, False
            amounts, named = each.spent.amounts, each.spent.budgets
        else:
            continue
        mine = list(dict.fromkeys(named))
        budgets += mine
        key = each.key if isinstance(each, Reserve) or each.spent is None else each.spent.key or each.key
        where = (each.run, each.fence, each.super_step, key, attempt)
        rows.append((kind, *where, *_in_columns(amounts), known, len(mine), at))
    return [*columns(rows, 13), budgets]


def _records(changes: Sequence[Change]) -> dict[Place, int]:
    """Where in the batch steps are recorded, if it reserves for any."""
    if not any(isinstance(change, Reserve) for change in changes):
        return {}
    records = ((at, record_of(change)) for at, change in enumerate(changes))
    return {(each.run, each.super_step, each.key): at for at, each in records if each is not None}


def _in_columns(amounts: Amounts) -> tuple[int, int, int, int]:
    usd, tokens, steps, us = (
        min(each, COLUMN_MAX) for each in (amounts.usd, amounts.tokens, amounts.steps, amounts.us)
    )
    return usd, tokens, steps, us
