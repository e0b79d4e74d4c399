"""Failures of steps and runs: from an exception to its record, and from the record to what is raised.

Live and on replay alike, what agent code sees is built from the record (`failure`), so that it cannot tell the two
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.core.errors import decode_error, encode_error, error_info, printable
from perdure.core.paths import type_name
from perdure.core.records import ErrorInfo, run_id
from perdure.errors import (
    BudgetExceeded,
    MailboxFull,
    NotFound,
    NotSerializable,
    OutboxFull,
    OutcomeUnknown,
    PayloadTooLarge,
    PerdureError,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunHeld,
    StartMismatch,
    StepFailed,
    ThreadBusy,
    TimedOut,
)

OURS: Final[dict[str, type[PerdureError]]] = {
    "perdure.errors.NotSerializable": NotSerializable,
    "perdure.errors.PayloadTooLarge": PayloadTooLarge,
    "perdure.errors.TimedOut": TimedOut,
    "perdure.errors.MailboxFull": MailboxFull,
    "perdure.errors.NotFound": NotFound,
    "perdure.errors.ThreadBusy": ThreadBusy,
    "perdure.errors.StartMismatch": StartMismatch,
    "perdure.errors.RunFailed": RunFailed,
    "perdure.errors.RunCancelled": RunCancelled,
    "perdure.errors.RunHeld": RunHeld,
    "perdure.errors.OutcomeUnknown": OutcomeUnknown,
    "perdure.errors.OutboxFull": OutboxFull,
    "perdure.errors.BudgetExceeded": BudgetExceeded,
}
"""The only types that come back as themselves: this table, not the record, says which class."""

NOT_DONE: Final = "not_done"
"""Under which a cancelled run's end lists the effects that were called and never dispatched."""

CHILD: Final = "child"
"""Under which a run's end names the child whose end it was."""

LISTED_MAX: Final = 20
"""Keys in such a list."""

CAUSES_MAX: Final = 32
"""How deep a chain of causes is searched for the steps behind a run's failure."""


def failure(payload: bytes, *, run: int, key: str, attempts: int) -> PerdureError:
    """The error that a failed step raises in its agent, from its record."""
    info = decode_error(payload)
    ids: dict[str, Any] = {"run_id": run_id(run), "key": key, "attempts": attempts}
    if info.retry_in_s > 0:
        ids["retry_after"] = info.retry_in_s  # where a Retry-After is looked for, also if the agent is tried again
    if info.type in OURS:
        return OURS[info.type](f"step {key!r} of run {run_id(run)}: {info.message}", **(ids | info.ids))
    times = "once" if attempts == 1 else f"{attempts} times"
    return StepFailed(
        f"{info.type}: {info.message} (step {key!r} of run {run_id(run)}, tried {times})",
        type=info.type, message=info.message, traceback=info.traceback, **ids,
    )  # fmt: skip


def run_error(error: BaseException) -> ErrorInfo:
    """What is recorded of the exception that ended a run, with the steps behind it: what a retry runs again. Where it
    is how a child has ended, the child is named."""
    info = error_info(error)
    ids = {CHILD: info.ids["run_id"]} if isinstance(error, RunEnded) and "run_id" in info.ids else {}
    keys = tuple(sorted(_failed_keys(error, 0)))
    return ErrorInfo(info.type, info.message, info.traceback, failed_keys=keys, ids=ids)


def cancellation(reason: str, after: BaseException | None = None, *, not_done: Sequence[str] = ()) -> bytes:
    """What a run ends with that was cancelled for this reason: what its code raised while it cleaned up, and the keys
    of the effects that it had called and that were never dispatched."""
    ids: dict[str, str | int] = {NOT_DONE: listed(not_done)} if not_done else {}
    if after is None:
        return encode_error(ErrorInfo(type_name(RunCancelled), printable(reason), ids=ids))
    info = error_info(after)
    text = f"{reason} (its code raised {info.type} while it was ending: {info.message})"
    return encode_error(ErrorInfo(type_name(RunCancelled), printable(text), info.traceback, ids=ids))


def not_done(error: ErrorInfo | None) -> str | None:
    """What was called and never dispatched, as a run's end lists it; None where there is nothing."""
    found = None if error is None else error.ids.get(NOT_DONE)
    return None if found is None else str(found)


def first_mended(error: ErrorInfo | None) -> str | None:
    """The command that sends on the child whose end was this run's end; None where it was no child's."""
    child = None if error is None else error.ids.get(CHILD)
    if error is None or child is None:
        return None
    return f"{'release' if error.type == type_name(RunHeld) else 'retry'} {child}"


def listed(keys: Sequence[str]) -> str:
    """Keys of steps, for people; not all of very many."""
    more = f" and {len(keys) - LISTED_MAX} more" if len(keys) > LISTED_MAX else ""
    return printable(", ".join(keys[:LISTED_MAX]) + more)


def _failed_keys(error: BaseException | None, depth: int) -> set[str]:
    if error is None or depth > CAUSES_MAX:
        return set()
    keys = {error.key} if isinstance(error, PerdureError) and isinstance(error.ids.get("key"), str) else set()
    if isinstance(error, BaseExceptionGroup):
        keys = keys.union(*(_failed_keys(inner, depth + 1) for inner in error.exceptions))
    return keys | _failed_keys(error.__cause__, depth + 1) | _failed_keys(error.__context__, depth + 1)


__all__ = [
    "cancellation",
    "decode_error",
    "encode_error",
    "error_info",
    "failure",
    "first_mended",
    "listed",
    "not_done",
    "run_error",
]
