"""A script: which line comes next, and for whom.

Lines that `when(...)` says come first. Then, by what the script is: a dict gives each step its own lines, one for each
try; a list goes on from line to line, but with `by_request` a request that was answered once is answered the same way
ever after. Failures are never remembered: what is tried again should get on.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

from perdure.core.keys import meant
from perdure.errors import UsageError
from perdure.testing.fake_model.words import (
    Disconnection,
    Line,
    Refusal,
    Reply,
    Silence,
    Slow,
    Stream,
    ToolCall,
    When,
    Word,
    checked_line,
    reply,
)

if TYPE_CHECKING:
    from perdure.testing.fake_model.fake import Request

Lines = Line | When | Sequence["Line | When"]


@dataclass(frozen=True, slots=True)
class Said:
    """What is said to one request, and after how many seconds."""

    word: Word
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Later:
    """A line that an async function of the script is still to make."""

    line: Awaitable[Any]
    request: Request
    delay_s: float


class Script:
    """The lines of a fake model, and how far it is in them."""

    def __init__(self, lines: Lines | Mapping[str, Lines], *, by_request: bool) -> None:
        self.steps: dict[str, list[Line]] | None = None
        everything: list[Line | When] = []
        if isinstance(lines, Mapping):
            if odd := [name for name in lines if not isinstance(name, str)]:
                raise UsageError(f"a script by step is a dict of step names or keys; {odd[0]!r} is none")
            self.steps = {name: _plain_lines(name, some) for name, some in lines.items()}
        else:
            everything = _listed(lines)
        self.whens = [line for line in everything if isinstance(line, When)]
        self.queue = [line for line in everything if not isinstance(line, When)]
        self.ordered = bool(self.queue)
        """Whether it has lines that are said in order."""
        self.by_request = by_request
        self._answered: dict[int, Said] = {}
        self._times = [0] * len(self.whens)

    def next(self, request: Request) -> Said | Later | None:
        """What is said to this request; None where the script says nothing."""
        identity = request.digest
        if self.by_request and identity in self._answered:
            return self._answered[identity]
        line = self._line(request)
        if line is None:
            return None
        return self._kept(_said(line, request), request)

    async def settle(self, said: Said | Later) -> Said:
        """What is said, when an async function has said what."""
        while isinstance(said, Later):
            said = self._kept(_said(await said.line, said.request, said.delay_s), said.request)
        return said

    def _kept(self, said: Said | Later, request: Request) -> Said | Later:
        if self.by_request and isinstance(said, Said) and is_answer(said.word):
            self._answered[request.digest] = said
        return said

    def _line(self, request: Request) -> Line | None:
        for at, line in enumerate(self.whens):
            if (line.times is None or self._times[at] < line.times) and line.matches(request):
                self._times[at] += 1
                return line.then
        if self.steps is not None:
            return self._line_of_step(request)
        return self.queue.pop(0) if self.queue else None

    def _line_of_step(self, request: Request) -> Line | None:
        """The line for this try of this step. The last one stands for all that follow."""
        assert self.steps is not None
        name = None if request.step is None else meant(self.steps, key=request.step, name=request.step_name or "")
        if name is None:
            return None
        lines = self.steps[name]
        return lines[min(request.attempt, len(lines)) - 1]


def is_answer(word: Word) -> bool:
    """Whether it ends the asking; whoever hears anything else may ask again."""
    return isinstance(word, Reply) or (isinstance(word, Stream) and word.breaks is None)


def _listed(lines: Lines) -> list[Line | When]:
    listed: list[Any] = list(lines) if isinstance(lines, Sequence) and not isinstance(lines, str) else [lines]
    return [line if isinstance(line, When) else checked_line(line) for line in listed]


def _plain_lines(name: str, lines: Lines) -> list[Line]:
    listed = _listed(lines)
    plain = [line for line in listed if not isinstance(line, When)]
    if len(plain) < len(listed) or not plain:
        raise UsageError(f"the script of step {name!r} needs lines, and no when(...): it is chosen by its step already")
    return plain


def _said(line: Any, request: Request, delay_s: float = 0.0) -> Said | Later:
    """A line as a word, whatever stands for it: a text, a function, a slow one."""
    while not isinstance(line, Reply | Stream | Refusal | Silence | Disconnection | BaseException):
        match line:
            case str() | ToolCall():
                line = reply(line)
            case Slow(by_s, then):
                delay_s += by_s
                line = then
            case _ if inspect.isawaitable(line):
                return Later(line, request, delay_s)
            case _ if callable(line) and not isinstance(line, type):
                line = line(request)
            case _:
                line = checked_line(line)
    return Said(_numbered(line, request.digest), delay_s)


def _numbered(word: Word, identity: int) -> Word:
    """The same with an id for each tool call that has none: from the request, so a repeated one gets the same."""

    def named(part: Any, number: int) -> Any:
        if not isinstance(part, ToolCall) or part.id:
            return part
        return ToolCall(part.name, part.arguments, f"call_{identity & (1 << 64) - 1:016x}_{number}")

    match word:
        case Reply(text, tools, finish):
            return Reply(text, tuple(named(call, n) for n, call in enumerate(tools, start=1)), finish)
        case Stream(pieces, breaks):
            return Stream(tuple(named(piece, n) for n, piece in enumerate(pieces, start=1)), breaks)
        case Refusal() | Silence() | Disconnection() | BaseException():
            return word
        case _:
            assert_never(word)
