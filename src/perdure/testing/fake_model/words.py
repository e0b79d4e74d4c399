"""The words a script is written in: what a model says, and how it fails to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from perdure.core.durations import Duration, seconds
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.testing.fake_model.fake import Request

RATE_LIMITED: Final = 429
OVERLOADED: Final = 529

REASONS: Final[Mapping[int, str]] = {
    400: "bad request", 401: "no such key", 403: "not allowed", 404: "no such model", 408: "request time-out",
    413: "request too large", 429: "rate limit reached", 500: "internal error", 502: "bad gateway",
    503: "service unavailable", 504: "gateway time-out", 529: "overloaded",
}  # fmt: skip


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that the model wants called."""

    name: str
    arguments: dict[str, Any] = {}
    id: str = ""
    """Unique in its conversation; the model makes one, from the request, where the script gives none."""


class Reply(msgspec.Struct, frozen=True):
    """What the model says: text, tools to call, or both. Plain data, so a step records it as it is."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    finish: str = "stop"
    """Why it stopped: "stop", "tool_calls", or "length" and whatever else a script says."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of 400 or more."""

    status: int
    message: str
    retry_after: str | None


Breaks = Refusal | Literal["cut"] | None
"""How a stream ends badly, if it does."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A reply in pieces, in this order. It may end badly after the last of them."""

    pieces: tuple[str | ToolCall, ...]
    breaks: Breaks = None
    """The connection breaks, or the model reports an error inside the stream."""

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join(piece for piece in self.pieces if isinstance(piece, str))


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer: `gives_up` is when the client has waited for long enough, at once; else nobody ever hears anything."""

    gives_up: bool


@dataclass(frozen=True, slots=True)
class Disconnection:
    """The connection closes before an answer."""


@dataclass(frozen=True, slots=True)
class Slow:
    """A wait before what comes then."""

    by_s: float
    then: Line


@dataclass(frozen=True, slots=True)
class When:
    """What is said to requests of one kind, whatever their order; `times` of them at most."""

    matches: Callable[[Request], bool]
    then: Line
    times: int | None


After = float | str | timedelta | datetime | None
"""When to come again: after so long, or at a moment."""

Word = Reply | Stream | Refusal | Silence | Disconnection | BaseException
Line = Word | Slow | ToolCall | str | Callable[["Request"], Any]
"""A line of a script. A text is a reply, an exception is raised, a function (async or not) makes another line from the
request."""


def reply(*parts: str | ToolCall, finish: str | None = None) -> Reply:
    """The model says this: texts, which are joined, and `tool(...)` calls."""
    _check(parts, "reply")
    tools = tuple(part for part in parts if isinstance(part, ToolCall))
    text = "".join(part for part in parts if isinstance(part, str))
    return Reply(text, tools, finish or ("tool_calls" if tools else "stop"))


def tool(name: str, arguments: Mapping[str, Any] | None = None, *, id: str = "") -> ToolCall:
    """A tool call, as a part of `reply` or a piece of `stream`."""
    if not isinstance(name, str) or not isinstance(id, str):
        raise UsageError(f"tool({name!r}, …, id={id!r}): a tool's name and its call's id are texts")
    if arguments is not None and not isinstance(arguments, Mapping):
        raise UsageError(f"tool({name!r}, {arguments!r}): its arguments are a dict, such as {{'query': 'tea'}}")
    return ToolCall(name, dict(arguments or {}), id)


def stream(*pieces: str | ToolCall | Refusal, cut: bool = False) -> Stream:
    """The model says this piece by piece. With `cut` the connection breaks after the last piece; an `error(...)` as the
    last one is reported inside the stream. Who does not stream gets the whole, or the failure."""
    _check((piece for piece in pieces if not isinstance(piece, Refusal)), "stream")
    *first, last = pieces or ("",)
    breaks: Breaks = last if isinstance(last, Refusal) else "cut" if cut else None
    said = tuple(piece for piece in (first if isinstance(last, Refusal) else pieces) if not isinstance(piece, Refusal))
    if len(said) + isinstance(last, Refusal) < len(pieces) or (cut and isinstance(last, Refusal)):
        raise UsageError("a stream ends once: with one error(…) as its last piece, or with cut=True")
    return Stream(said, breaks)


def error(status: int, message: str | None = None, *, retry_after: After = None) -> Refusal:
    """The model refuses with this status. `retry_after`: how long, or a moment, which is sent as an HTTP date."""
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status < 600:
        raise UsageError(f"{status!r} is no error's status; they are numbers from 400 to 599")
    if message is not None and not isinstance(message, str):
        raise UsageError(f"error({status}, {message!r}): its message is a text")
    return Refusal(status, message or REASONS.get(status, "error"), _header(retry_after))


def rate_limited(retry_after: After = None) -> Refusal:
    """Too many requests: 429."""
    return error(RATE_LIMITED, retry_after=retry_after)


def overloaded(retry_after: After = None) -> Refusal:
    """Too much to do: 529."""
    return error(OVERLOADED, retry_after=retry_after)


def timeout() -> Silence:
    """The client gives up waiting. (In a script that is served: silence, until the client does give up.)"""
    return Silence(gives_up=True)


def silence() -> Silence:
    """Nothing, for ever: what a step's own `timeout=` is for."""
    return Silence(gives_up=False)


def disconnected() -> Disconnection:
    """The connection is closed before an answer comes."""
    return Disconnection()


def slow(by: Duration, then: Line) -> Slow:
    """The same, after so long on the event loop's clock."""
    return Slow(seconds(by), checked_line(then))


def when(asked: str | Callable[[Request], bool], then: Line, *, times: int | None = None) -> When:
    """Say this to requests of one kind: to those in whose last message the text occurs, or for which the function is
    true. It goes before the rest of the script, and is not used up (or after so many `times`)."""
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 1):
        raise UsageError(f"when(…, times={times!r}): it is a whole number from 1, or None for every time")
    then = checked_line(then)
    if isinstance(asked, str):
        part = asked
        return When(lambda request: part in request.text, then, times)
    if not callable(asked) or inspect.iscoroutinefunction(asked):
        raise UsageError(f"when({asked!r}, …): it takes a text to look for, or a plain function of the request")
    return When(asked, then, times)


def checked_line(line: Any) -> Line:
    """The line, if it is one."""
    if isinstance(line, type) and issubclass(line, BaseException):
        return line()
    if isinstance(line, When):
        raise UsageError("a when(…) stands in the list of a script's lines, and not inside of another line")
    known = str | ToolCall | Slow | Reply | Stream | Refusal | Silence | Disconnection | BaseException
    if not isinstance(line, known) and not callable(line):
        raise UsageError(f"{line!r} is no line of a script; write reply(…), error(…), a text, or a function")
    found: Line = line
    return found


def _check(parts: Iterable[object], word: str) -> None:
    for part in parts:
        if not isinstance(part, str | ToolCall):
            raise UsageError(f"{part!r} is no part of {word}(…): a model says texts, and tool(…) calls")


def _header(retry_after: After) -> str | None:
    """A Retry-After as it is sent."""
    if retry_after is None:
        return None
    if not isinstance(retry_after, datetime):
        wait_s = seconds(retry_after, what="a time to wait for (retry_after)")
        return str(int(wait_s) if wait_s.is_integer() else wait_s)
    from email.utils import format_datetime  # late: a hundred times as large as the rest

    moment = retry_after if retry_after.tzinfo is not None else retry_after.astimezone()
    return format_datetime(moment.astimezone(UTC), usegmt=True)
