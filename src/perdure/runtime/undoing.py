"""Compensation: the undos of a run's effects, the last one done first.

A run that fails or is cancelled after an effect was done decides its end on disk (`BeginUndo`); none of its code runs
after that. Then the undo of each effect is dispatched as an effect is, its intent on disk first, until it has gone
through; one that keeps failing is left as `undo_failed` for a person, and the others are undone all the same. A crash
in between leaves the ledger to say which are left. (Sagas, as Garcia-Molina and Salem described them in 1987.)
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from perdure.core.changes import IntendEffect, SettleEffect
from perdure.core.effects import UNDOABLE, EffectFilter, EffectState, effect_id
from perdure.core.errors import printable
from perdure.core.limits import UNDO_ATTEMPTS
from perdure.core.records import run_id
from perdure.core.retry import Retry, backoff_s
from perdure.errors import UsageError
from perdure.runtime.effect import KNOWN, Effect, effect_of, has_several
from perdure.runtime.fitting import fitting
from perdure.runtime.frames import BesideFrame, agent_frame, outside
from perdure.runtime.inquiry import NOTE_CHARS, call_beside, said
from perdure.runtime.metering import file_beside
from perdure.runtime.patience import patiently
from perdure.runtime.payloads import load_payload
from perdure.runtime.recording import NOTHING, Call
from perdure.runtime.strays import make_up_for, seen_to_its_end
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.core.effects import Effect as Row
    from perdure.runtime.superstep import SuperStep

_HAPPENED: Final = UNDOABLE | {EffectState.UNDONE}

PAGE: Final = 100
"""Effects that are read at a time: a run has a handful."""

TRIES: Final = Retry(attempts=UNDO_ATTEMPTS, delay_s=1.0, max_delay_s=30.0)
"""How an undo is tried, whatever it raises: it is all that is left to do."""


async def compensate() -> None:
    """Undo what this run has done so far: each effect that is done and has an `undo`, the last one first. What cannot
    be undone is left for a person (`perdure effects list --state undo_failed`)."""
    at = agent_frame("compensate").super_step
    at.regrets = True
    call = await Call.of("compensate", "compensate")
    at.compensated = True
    put_off: list[tuple[Any, ...]] = []
    if call.record is None:
        await _seen_through(at, put_off)
        at.submit(call.result(NOTHING))
    at.regrets = False
    make_up_for(at, put_off)


async def _seen_through(at: SuperStep, put_off: list[tuple[Any, ...]]) -> None:
    """Undo in a task of its own: whoever cancels the code around it cancels that after it, and where the code ends
    first, its super-step waits."""
    with outside():
        undoing = asyncio.get_running_loop().create_task(undo_all(at), name="perdure-compensate")
    at.undoes(undoing)
    await seen_to_its_end(at, undoing, put_off)
    undoing.result()


def may_undo() -> bool:
    """Whether any effect in this process has an undo at all: where none has, no run is asked about its effects."""
    return any(effect.plan.undo is not None for refs in KNOWN.values() for ref in refs if (effect := ref()) is not None)


def has_done(rows: list[Row]) -> bool:
    """Whether any of these has happened, whatever became of it afterwards."""
    return any(row.state in _HAPPENED for row in rows)


def left_to_undo(rows: list[Row]) -> list[Row]:
    """Those of these whose undo is to run, the last one done first."""
    found = [row for row in rows if _is_left(row)]
    return sorted(found, key=lambda row: (row.super_step, row.settled_at or 0, row.id), reverse=True)


def begun_to_undo(rows: list[Row]) -> list[Row]:
    """Those of these whose undo has begun, and not ended."""
    return [row for row in rows if row.state is EffectState.UNDOING]


async def undoable(at: SuperStep) -> list[Row]:
    """The effects of the run that have an undo, as the ledger has them."""
    store = at.host.store
    found: list[Row] = []
    where = EffectFilter(run=at.claimed.run, undoable=True, limit=PAGE)
    while True:
        found += (page := await patiently("undo", functools.partial(store.effects, where)))
        if len(page) < where.limit:
            return found
        where = replace(where, after=page[-1].id)


def _is_left(row: Row) -> bool:
    """Whether its undo is to run; one that has failed is, once a person has sent it on."""
    failed = row.state is EffectState.UNDO_FAILED and row.undo_attempt < UNDO_ATTEMPTS
    return failed or row.state in (EffectState.DONE, EffectState.UNDOING)


async def undo_all(at: SuperStep, rows: list[Row] | None = None) -> None:
    """Undo what the run has done, one after the other; `rows` are its effects, where they have just been read."""
    async with at.undo_lock:
        if rows is None:
            await at.flushed()  # what was done last is in the ledger
            rows = await undoable(at)
        for row in left_to_undo(rows):
            await _undo(at, row)


async def _undo(at: SuperStep, row: Row) -> None:
    """Try this one until it has gone through, or has been tried as often as it may."""
    attempt = row.undo_attempt
    note: str | None = f"its worker died during try {attempt} of its undo, the last one"
    while attempt < UNDO_ATTEMPTS:
        attempt += 1
        try:
            note = await _attempt(at, row, attempt)
        except _NoUndoError as error:  # no further try finds it
            note = printable(str(error), NOTE_CHARS)
            break
        if note is None:
            return
        if attempt < UNDO_ATTEMPTS:
            await asyncio.sleep(backoff_s(TRIES, attempt))
    await at.kept(at.submit(_settled(at, row, attempt, EffectState.UNDO_FAILED, note)))
    emit("effect.undo_given_up", run=run_id(row.run), effect=effect_id(row.id), key=row.key, tries=attempt, error=note)


async def _attempt(at: SuperStep, row: Row, attempt: int) -> str | None:
    """One try, seen to its end as an effect is; None where it has gone through, else why it has not."""
    await at.admit()
    at.in_flight += 1
    put_off: list[tuple[Any, ...]] = []
    try:
        await at.kept(at.submit(_intent(at, row, attempt)))
        with outside():
            body = asyncio.get_running_loop().create_task(_body(at, row, attempt), name=f"undo {row.key}")
        await seen_to_its_end(at, body, put_off)
        try:
            body.result()
        except _NoUndoError:
            at.check()
            raise
        except (Exception, asyncio.CancelledError) as error:  # the edge of user code, which may cancel itself
            at.check()
            note = printable(f"try {attempt} of its undo: {said(error)}", NOTE_CHARS)
            emit("effect.undo_failed", run=run_id(row.run), effect=effect_id(row.id), key=row.key, error=note)
            return note
        await at.kept(at.submit(_settled(at, row, attempt, EffectState.UNDONE, None)))
        emit("effect.undone", run=run_id(row.run), effect=effect_id(row.id), key=row.key)
        return None
    finally:
        at.body_ended()
        if at.ending is None:
            make_up_for(at, put_off)


async def _body(at: SuperStep, row: Row, attempt: int) -> None:
    """Call the undo with the effect's result, and as many of its arguments as it takes."""
    effect = at.used.get((row.super_step, row.key)) or effect_of(row.code)
    undo = effect.undo if isinstance(effect, Effect) else None
    if not isinstance(effect, Effect) or undo is None:
        raise _NoUndoError(_why_none(row))
    store, thread = at.host.store, row.thread
    arguments = effect.called_with(await load_payload(store, thread, row.arguments))
    assert row.outcome is not None, f"{effect_id(row.id)} is done, and has no result"
    result = effect.codec.decode(await load_payload(store, thread, row.outcome))
    args, kwargs = fitting(undo, result, *arguments)
    here = BesideFrame(at, "undo", row.name, row.key, attempt, f"{row.idempotency_key}-undo")
    began = at.host.clock.wall_us()
    await at.trusted()
    at.check()  # from here to the first line of the undo is one breath
    try:
        await call_beside(here, undo, args, kwargs, timeout_s=effect.settings.timeout_s)
    finally:
        file_beside(at, row.key, attempt, f"undo {row.super_step}", here.meters, began)


class _NoUndoError(UsageError):
    """This worker's code does not have the undo."""


def _why_none(row: Row) -> str:
    """Why an effect's undo was not found, and what helps."""
    again = f"then `perdure retry {run_id(row.run)} --undo`"
    if has_several(row.code):
        return (
            f"there are several effects at {row.code} with different undos, and nobody knows which is this run's; "
            f"declare it once, at the top of a module, {again}"
        )
    return (
        f"this worker knows no effect with an undo at {row.code}: it was renamed or moved, has lost its undo, or its "
        f"module is not imported; put it back there, {again}"
    )


def _intent(at: SuperStep, row: Row, attempt: int) -> IntendEffect:
    claimed = at.claimed
    return IntendEffect(
        claimed.run, claimed.fence, claimed.thread, row.super_step, row.key, row.id, row.name, row.code,
        row.idempotency_key, row.policy, True, attempt, row.digest, row.arguments, undo=True, cancelled=True,
    )  # fmt: skip


def _settled(at: SuperStep, row: Row, attempt: int, state: EffectState, note: str | None) -> SettleEffect:
    claimed = at.claimed
    return SettleEffect(claimed.run, claimed.fence, claimed.thread, row.id, attempt, state, None, note)
