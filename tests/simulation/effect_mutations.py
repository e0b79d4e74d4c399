"""Effects, broken in one place at a time: in the runtime, and in the ledger in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from perdure.core.changes import IntendEffect
from perdure.core.effects import EffectState
from perdure.core.records import RunState
from perdure.runtime import dispatching, execution, undoing
from perdure.runtime.dispatching import Dispatch
from perdure.runtime.execution import Execution
from perdure.runtime.superstep import SuperStep
from perdure.store.memory import commits, effects
from perdure.testing.simulation.orders import Theme
from tests.simulation.breaking import Breaking, Mutation, replaced, together, wrapped


async def _nothing(*args: Any, **kwargs: Any) -> None:
    """What is called does nothing."""


# -- dispatching -----------------------------------------------------------------------------------------------------


async def _intent_not_awaited(original: Any, dispatch: Any) -> bool:
    writing = asyncio.ensure_future(original(dispatch))
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)
    return True


async def _dispatched_all_the_same(original: Any, dispatch: Any) -> bool:
    await original(dispatch)
    return True


def _known_as_absent(original: Any, dispatch: Any, *args: Any) -> None:
    original(dispatch, *args)
    dispatch.unknown = False


def _told_as_absent(original: Any, error: BaseException) -> Any:
    told = original(error)
    return dispatching.Happening.NOT_SENT if told is dispatching.Happening.UNKNOWN else told


async def _under_a_new_key(original: Any, dispatch: Any) -> bool:
    if dispatch.id:
        dispatch.idempotency_key = dispatching.idempotency_key(dispatch.at.host.random)
    return bool(await original(dispatch))


async def _done_and_done(original: Any, dispatch: Any, payload: bytes, value: Any, **said: Any) -> Any:
    dispatch.at.submit(dispatch._settled(EffectState.DONE, payload, note=None))
    return await original(dispatch, payload, value, **said)


async def _not_counted(dispatch: Any, error: Exception, retry_in_s: float = 0.0) -> None:
    dispatch.tries = 0


# -- undoing ---------------------------------------------------------------------------------------------------------


def _first_first(original: Any, rows: Any) -> Any:
    return list(reversed(original(rows)))


async def _not_the_last(original: Any, at: SuperStep, rows: Any = None) -> Any:
    """What is in flight is not in the ledger yet."""
    last, at._last = at._last, None
    try:
        return await original(at, rows)
    finally:
        at._last = last


async def _looked_at_at_once(execution: Any, end: Any) -> Any:
    if end.outcome is RunState.COMPLETED or execution._left is None:
        return []
    return undoing.left_to_undo(await undoing.undoable(execution._left))


def _twice(original: Any, rows: Any) -> Any:
    return [row for row in original(rows) for _ in range(2)]


async def _ends_as_it_ended(original: Any, execution: Any, ending: Any) -> Any:
    """Its cancellation has won, and nobody looks at what it has done."""
    with replaced(Execution, "_to_undo", _none)():
        return await original(execution, ending)


async def _none(*args: Any) -> list[Any]:
    return []


async def _undone_before_its_intent(original: Any, at: SuperStep, row: Any, attempt: int) -> Any:
    kept, times = at.kept, 0

    async def once_late(batch: Any) -> None:
        nonlocal times
        times += 1
        if times > 1:
            await kept(batch)

    at.kept = once_late  # type: ignore[method-assign]
    try:
        return await original(at, row, attempt)
    finally:
        del at.kept  # type: ignore[attr-defined]


# -- the ledger ------------------------------------------------------------------------------------------------------


def _read_as_absent(original: Any, tables: Any, row: Any) -> Any:
    seen = original(tables, row)
    over = row.state is not seen.state
    return msgspec.structs.replace(seen, state=EffectState.ABSENT) if over else seen


def _any_fence(original: Any, tables: Any, worker: int, changes: Any, *, now: int) -> Any:
    draft = effects.Draft(tables, worker, now=now)
    lost = [each for each in changes if isinstance(each, IntendEffect) and tables.runs[each.run].fence != each.fence]
    draft.file({each.run for each in lost if draft.judge(each) is None})
    return original(tables, worker, changes, now=now)


def _any_cancellation(original: Any, change: Any) -> bool:
    return isinstance(change, IntendEffect) or bool(original(change))


def _settled_again(original: Any, change: Any, before: Any, worker: int, *, now: int) -> Any:
    if before is None or change.state is not EffectState.DONE or before.row.state is not EffectState.DONE:
        return original(change, before, worker, now=now)
    after = effects._moved(before.row, settled_at=now)
    return effects.Entry(after, (*before.events, effects._event(after, worker, change.fence, at=now)))


def _left_out_of_the_audit(original: Any, change: Any, before: Any, worker: int, *, now: int) -> Any:
    after = original(change, before, worker, now=now)
    return effects.Entry(after.row, after.events[:-1]) if isinstance(after, effects.Entry) else after


def _mutation(name: str, expected: str, breaking: Breaking) -> Mutation:
    return Mutation(name, expected, breaking, theme=Theme.EFFECTS)


EFFECTS = (
    _mutation(
        "An effect is dispatched before its intent is on disk",
        "without its intent on disk",
        wrapped(Dispatch, "_intend", _intent_not_awaited),
    ),
    _mutation(
        "An intent that a cancellation has refused is dispatched all the same",
        "without its intent on disk",
        wrapped(Dispatch, "_intend", _dispatched_all_the_same),
    ),
    _mutation(
        "An effect that waited for its intent does not ask for trust again",
        "after the last renewal",
        replaced(SuperStep, "trusted", _nothing),
    ),
    _mutation(
        "Verifying does not wait for the lease of the worker before",
        r"was done \d times",
        replaced(Dispatch, "_outlive", _nothing),
    ),
    _mutation(
        "An intent that was found is taken for what did not happen",
        r"was done \d times",
        wrapped(Dispatch, "__init__", _known_as_absent),
    ),
    _mutation(
        "An error after which nobody knows is taken for what did not happen",
        r"was done \d times|has happened",
        wrapped(dispatching, "what_happened", _told_as_absent),
    ),
    _mutation("A new key is made for each try", "has given|was done", wrapped(Dispatch, "_intend", _under_a_new_key)),
    _mutation("Tries of an effect are not counted", "allowed tries", replaced(Dispatch, "_count", _not_counted)),
    _mutation(
        "An effect's outcome is recorded twice",
        "was recorded twice",
        together(wrapped(Dispatch, "_done", _done_and_done), wrapped(effects, "_settle", _settled_again)),
    ),
    _mutation("What was done first is undone first", "done after it", wrapped(undoing, "left_to_undo", _first_first)),
    _mutation(
        "What is undone does not wait for what is in flight",
        "has ended as|done after it",
        wrapped(undoing, "undo_all", _not_the_last),
    ),
    _mutation(
        "Whether there is something to undo is asked before it is on disk",
        "has ended as",
        replaced(Execution, "_to_undo", _looked_at_at_once),
    ),
    _mutation(
        "A run whose cancellation has won undoes nothing",
        "has ended as",
        wrapped(Execution, "_too_late", _ends_as_it_ended),
    ),
    _mutation("Nothing is ever undone", "has ended as", replaced(execution, "may_undo", lambda: False)),
    _mutation("What was undone is undone again", "refused|was undone", wrapped(undoing, "left_to_undo", _twice)),
    _mutation(
        "An undo does not wait for its intent",
        "without its intent on disk",
        wrapped(undoing, "_attempt", _undone_before_its_intent),
    ),
    _mutation(
        "An intent whose claim is over is read as absent",
        "is read as|was done",
        wrapped(effects, "seen", _read_as_absent),
    ),
    _mutation("An intent is written whoever owns the run", "not its owner", wrapped(commits, "apply", _any_fence)),
    _mutation(
        "An intent is written though its run is cancelled",
        "was intended though",
        wrapped(commits, "is_aware", _any_cancellation),
    ),
    _mutation("The audit leaves an outcome out", "its audit has", wrapped(effects, "_settle", _left_out_of_the_audit)),
)
