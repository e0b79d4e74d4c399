"""A super-step's end, as it is recorded and as it is now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perdure.core.changes import BeginSuperStep, EndRun
from perdure.core.failures import decode_error, run_error
from perdure.core.records import Checkpoint, ErrorInfo, Kind
from perdure.runtime.payloads import load_payload, load_state
from perdure.testing.replaying.execution import ReplayExecution
from perdure.testing.replaying.history import Recorded
from perdure.testing.replaying.hosting import Shelf
from perdure.testing.replaying.report import Difference, Finding
from perdure.testing.replaying.values import places, shown

_decode: Final = msgspec.msgpack.Decoder().decode


class Comparison:
    """Compares what the agent returned or raised with the recorded end."""

    def __init__(self, recorded: Recorded, shelf: Shelf) -> None:
        self._recorded = recorded
        self._end = recorded.end
        self._shelf = shelf

    async def returned(self, execution: ReplayExecution, value: Any) -> list[Difference]:
        """The agent returned; an `Again` and a result are compared as they would be written."""
        try:
            change = execution.written(value)
        except Exception as error:  # the edge of user code, as in an execution: what it returned cannot be recorded
            return await self.raised(run_error(error))
        end = self._end
        if end is None:
            return []
        self._shelf.add(change.blobs)
        goes_on = isinstance(change, BeginSuperStep)
        if end.failed or goes_on is not (end.kind is Kind.BOUNDARY):
            now = _end_text(await self._value(change.payload), goes_on=goes_on)
            return [self._difference(Finding.ENDING, "end", await self.end_text(), now)]
        what = (Finding.ARGUMENTS, "arguments") if goes_on else (Finding.RESULT, "result")
        was, now_value = await self._value(end.payload), await self._value(change.payload)
        if goes_on:
            was, now_value = _arguments(was), _arguments(now_value)
        return [*self._places(*what, was, now_value), *await self._state(end, change)]

    async def raised(self, error: ErrorInfo) -> list[Difference]:
        """The agent raised."""
        end = self._end
        if end is None or not end.failed:
            return [self._difference(Finding.RAISES, "end", await self.end_text(), error_text(error), error.traceback)]
        was = await self._error(end)
        if (was.type, was.message) == (error.type, error.message):
            return []
        return [self._difference(Finding.ERROR, "end", error_text(was), error_text(error), error.traceback)]

    async def end_text(self) -> str:
        """The recorded end, for people."""
        end = self._end
        if end is None:
            return "has not ended"
        if end.failed:
            return error_text(await self._error(end))
        return _end_text(await self._value(end.payload), goes_on=end.kind is Kind.BOUNDARY)

    async def _state(self, end: Checkpoint, change: BeginSuperStep | EndRun) -> Iterable[Difference]:
        if end.state == change.state:
            return ()
        return self._places(Finding.STATE, "state", await self._thawed(end.state), await self._thawed(change.state))

    def _places(self, finding: Finding, what: str, was: Any, now: Any) -> list[Difference]:
        return [
            self._difference(finding, what if path == "$" else f"{what} {path}", then, today)
            for path, then, today in places(was, now)
        ]

    def _difference(self, finding: Finding, where: str, was: str, now: str, detail: str = "") -> Difference:
        return Difference(finding, self._recorded.number, where, was, now, detail)

    async def _value(self, payload: bytes) -> Any:
        return _decode(await load_payload(self._shelf.as_store, 0, payload))

    async def _error(self, end: Checkpoint) -> ErrorInfo:
        return decode_error(await load_payload(self._shelf.as_store, 0, end.payload))

    async def _thawed(self, root: bytes | None) -> Any:
        return None if root is None else (await load_state(self._shelf.as_store, 0, root))[0]


def error_text(error: ErrorInfo) -> str:
    """An error on one line."""
    return f"{error.type}: {error.message}"


def _end_text(value: Any, *, goes_on: bool) -> str:
    return f"Again {shown(_arguments(value))}" if goes_on else f"returns {shown(value)}"


def _arguments(value: Any) -> Any:
    """Recorded arguments as a list, or as a list and a dict where some were given by name."""
    match value:
        case [list() as args, dict() as kwargs]:
            return [args, kwargs] if kwargs else args
        case other:
            return other
