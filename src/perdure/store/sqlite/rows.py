"""Rows of the shared statements as records; the columns bear the records' field names, in their order."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.core.budgets import UNITS, Amounts, BudgetRow, Limits
from perdure.core.deliveries import Delivery, DeliveryState
from perdure.core.effects import Effect, EffectEvent, EffectState
from perdure.core.meters import MeterRow
from perdure.core.records import (
    Attempt,
    Checkpoint,
    Interrupt,
    InterruptState,
    Kind,
    Message,
    Outcome,
    Run,
    RunState,
    Thread,
    Wait,
    WaitKind,
    Worker,
    WorkerState,
)
from perdure.store.sqlite.transaction import Shape

_KINDS: Final = tuple(Kind)
_WAIT_KINDS: Final = tuple(WaitKind)
_names: Final = msgspec.json.Decoder(tuple[str, ...]).decode


def blob(text: str | None) -> bytes | None:
    """A blob that travelled as hex."""
    return None if text is None else bytes.fromhex(text)


def _run(row: list[Any]) -> Run:
    row[7] = RunState(row[7])
    row[10] = bool(row[10])
    row[21] = _names(row[21])
    row[26] = bool(row[26])
    row[29] = bool(row[29])
    row[30] = bool(row[30])
    return Run(*row)


def _checkpoint(row: list[Any]) -> Checkpoint:
    row[3] = _KINDS[row[3]]
    row[9] = bool(row[9])
    row[10] = bytes.fromhex(row[10])
    row[11] = blob(row[11])
    return Checkpoint(*row)


def _attempt(row: list[Any]) -> Attempt:
    row[5] = blob(row[5])
    return Attempt(*row)


def _wait(row: list[Any]) -> Wait:
    row[3] = _WAIT_KINDS[row[3]]
    row[7] = () if row[7] is None else _names(row[7])
    row[8] = bool(row[8])
    row[9] = bool(row[9])
    return Wait(*row)


def _interrupt(row: list[Any]) -> Interrupt:
    row[8] = InterruptState(row[8])
    row[9] = bytes.fromhex(row[9])
    row[10] = blob(row[10])
    row[17] = blob(row[17])
    return Interrupt(*row)


def _effect(row: list[Any]) -> Effect:
    row[12] = bool(row[12])
    row[13] = EffectState(row[13])
    row[17] = bytes.fromhex(row[17])
    row[18] = blob(row[18])
    return Effect(*row)


def _effect_event(row: list[Any]) -> EffectEvent:
    row[3] = EffectState(row[3])
    return EffectEvent(*row)


def _delivery(row: list[Any]) -> Delivery:
    row[10] = bool(row[10])
    row[12] = bytes.fromhex(row[12])
    row[13] = DeliveryState(row[13])
    row[14] = bool(row[14])
    return Delivery(*row)


def _meter(row: list[Any]) -> MeterRow:
    row[8] = bytes.fromhex(row[8])
    return MeterRow(*row)


def _budget(row: list[Any]) -> BudgetRow:
    id, name, *amounts = row[:14]
    return BudgetRow(id, name, Limits(*amounts[:4]), Amounts(*amounts[4:8]), Amounts(*amounts[8:]), *row[14:])


def _message(row: list[Any]) -> Message:
    row[5] = bytes.fromhex(row[5])
    return Message(*row)


def _outcome(row: list[Any]) -> Outcome:
    run, failed, payload = row
    return Outcome(run, bool(failed), bytes.fromhex(payload))


def _worker(row: list[Any]) -> Worker:
    row[5] = WorkerState(row[5])
    row[6] = bool(row[6])
    row[7] = bool(row[7])
    return Worker(*row)


def _columns(fields: tuple[str, ...]) -> tuple[str, ...]:
    """The fields' columns: `by` is no name for one."""
    return tuple("said_by" if field == "by" else field for field in fields)


def _budget_columns() -> tuple[str, ...]:
    """A budget's columns: each of its structs is one a unit."""
    amounts = tuple(f"{unit}_{what}" for what in ("max", "spent", "reserved") for unit in UNITS)
    first, last = BudgetRow.__struct_fields__[:2], BudgetRow.__struct_fields__[5:]
    return _columns((*first, *amounts, *last))


RUN: Final = Shape(Run.__struct_fields__, frozenset(), _run)
CHECKPOINT: Final = Shape(Checkpoint.__struct_fields__, frozenset({"payload", "state"}), _checkpoint)
ATTEMPT: Final = Shape(Attempt.__struct_fields__, frozenset({"error"}), _attempt)
WAIT: Final = Shape(Wait.__struct_fields__, frozenset(), _wait)
INTERRUPT: Final = Shape(Interrupt.__struct_fields__, frozenset({"payload", "schema", "answer"}), _interrupt)
EFFECT: Final = Shape(_columns(Effect.__struct_fields__), frozenset({"arguments", "outcome"}), _effect)
EFFECT_EVENT: Final = Shape(_columns(EffectEvent.__struct_fields__), frozenset(), _effect_event)
DELIVERY: Final = Shape(Delivery.__struct_fields__, frozenset({"payload"}), _delivery)
METER: Final = Shape(MeterRow.__struct_fields__, frozenset({"attributes"}), _meter)
BUDGET: Final = Shape(_budget_columns(), frozenset(), _budget)
MESSAGE: Final = Shape(Message.__struct_fields__, frozenset({"payload"}), _message)
OUTCOME: Final = Shape(Outcome.__struct_fields__, frozenset({"payload"}), _outcome)
THREAD: Final = Shape(Thread.__struct_fields__, frozenset(), lambda row: Thread(*row))
WORKER: Final = Shape(Worker.__struct_fields__, frozenset(), _worker)
