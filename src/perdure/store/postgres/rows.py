"""From the database's rows to records: the statements name their columns in the records' order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from perdure.core.budgets import Amounts, BudgetRow, Limits
from perdure.core.deliveries import Delivery, DeliveryState
from perdure.core.effects import Effect, EffectEvent, EffectState, Undoing
from perdure.core.meters import MeterRow, UsageRow
from perdure.core.records import (
    Attempt,
    Checkpoint,
    Claimed,
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
from perdure.core.requests import (
    Answered,
    AnswerOutcome,
    Bounce,
    KeyTaken,
    NotAnswered,
    NotSent,
    OtherAgent,
    ParentGone,
    QuestionOpen,
    SendOutcome,
    Sent,
    Started,
    StartOutcome,
    StartRun,
    ThreadHeld,
)

Row = Any

_KINDS: Final = tuple(Kind)


def to_run(row: Row) -> Run:
    values = dict(row)
    return Run(**values | {"state": RunState(values["state"]), "tags": tuple(values["tags"])})


def to_thread(row: Row) -> Thread:
    return Thread(*row)


def to_worker(row: Row) -> Worker:
    values = dict(row)
    return Worker(**values | {"state": WorkerState(values["state"])})


def to_checkpoint(row: Row) -> Checkpoint:
    """Column by column: a replay builds thousands, and unpacking the rest as a list took five times as long."""
    run, super_step, key, kind, seq, fence, worker, attempt, digest, failed, payload, state, started_at, ended_at = row
    return Checkpoint(
        run, super_step, key, _KINDS[kind], seq, fence, worker, attempt, digest, failed, payload, state,
        started_at, ended_at,
    )  # fmt: skip


def to_attempt(row: Row) -> Attempt:
    return Attempt(*row)


def to_outcome(row: Row) -> Outcome:
    return Outcome(*row)


def to_wait(row: Row) -> Wait:
    values = dict(row)
    return Wait(**values | {"kind": WaitKind(values["kind"]), "labels": tuple(values["labels"] or ())})


def to_interrupt(row: Row) -> Interrupt:
    values = dict(row)
    return Interrupt(**values | {"state": InterruptState(values["state"])})


def to_message(row: Row) -> Message:
    return Message(*row)


def to_effect(row: Row) -> Effect:
    values = dict(row)
    return Effect(**values | {"state": EffectState(values["state"])})


def to_effect_event(row: Row) -> EffectEvent:
    values = dict(row)
    return EffectEvent(**values | {"state": EffectState(values["state"])})


def to_delivery(row: Row) -> Delivery:
    values = dict(row)
    return Delivery(**values | {"state": DeliveryState(values["state"])})


def to_meter(row: Row) -> MeterRow:
    return MeterRow(*row)


def to_usage(row: Row) -> UsageRow:
    group, name, quantity, entries = row
    return UsageRow(group, name, int(quantity), entries)


def to_budget(row: Row) -> BudgetRow:
    id, name, limits, spent, reserved, *rest = row
    return BudgetRow(id, name, Limits(*limits), Amounts(*spent), Amounts(*reserved), *rest)


def to_claimed(
    row: Row, records: Iterable[Row], attempts: Iterable[Row], waits: Iterable[Row], effects: Iterable[Row]
) -> Claimed:
    (
        run, thread, thread_id, agent, fence, super_step, attempt, recoveries, strikes, created_at, arguments, state,
        now, tenant, priority, deadline_at, cancel, undo_outcome, undo_payload, *_, budgets,
    ) = row  # fmt: skip
    return Claimed(
        run, thread, thread_id, agent, fence, super_step, attempt, recoveries, strikes, created_at, arguments, state,
        tuple(map(to_checkpoint, records)), tuple(map(to_attempt, attempts)), now, tuple(map(to_wait, waits)),
        tenant, priority, deadline_at, cancel, tuple(map(to_effect, effects)),
        None if undo_outcome is None else Undoing(RunState(undo_outcome), undo_payload),
        tuple(sorted(set(budgets))) if budgets else (),
    )  # fmt: skip


def to_answer_outcome(row: Row, answer: bytes) -> AnswerOutcome:
    """What became of an answer; the row is the interrupt's, after whether this was its first."""
    values = dict(row)
    created: bool = values.pop("created")
    found = to_interrupt(values)
    same = found.state is InterruptState.ANSWERED and found.answer == answer
    return Answered(found, created) if created or same else NotAnswered(found)


def to_send_outcome(row: Row, id: int) -> SendOutcome:
    """What became of the message with this id."""
    thread, seq, why, found = row
    return Sent(thread, seq, None if found == id else found) if why is None else NotSent(Bounce(why))


def to_start_outcome(start: StartRun, row: Row) -> StartOutcome:
    """An answer of the function `start_runs`; its file says what the numbers mean."""
    answer, run, thread_id, depth, agent = row
    match answer:
        case 0 | 5:
            return Started(start.id, start.thread_id, True)
        case 1:
            return Started(run, thread_id, False)
        case 2:
            return KeyTaken(run)
        case 3:
            return ThreadHeld(run or 0, depth)
        case 6 | 7:
            return ParentGone(run, answer == 7)
        case 8:
            return QuestionOpen(run, depth)
        case _:
            return OtherAgent(agent)
