"""The fake model: a coroutine function that keeps to its script and remembers what it was asked."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, assert_never

from perdure.core.digests import digest64
from perdure.runtime.frames import StepFrame, frame
from perdure.testing.fake_model.errors import ModelRefused, ModelTimeout, ModelUnreachable, StreamBroken, Unscripted
from perdure.testing.fake_model.script import Later, Lines, Said, Script, is_answer
from perdure.testing.fake_model.words import Disconnection, Refusal, Reply, Silence, Stream, reply

SHOWN_CHARS_MAX = 120
"""Of what was asked, in an error's message."""


@dataclass(frozen=True)
class Request:
    """What the model was asked, and by whom."""

    messages: Any
    """The first argument, else `messages=`, `input=` or `prompt=`: a text, or a list of messages, as they were then."""
    options: Mapping[str, Any]
    """Everything else that was given by name."""
    step: str | None
    """The key of the step that asks; None outside of a run."""
    attempt: int
    """Which try of the step it is; 1 outside of a run."""
    step_name: str | None = None

    @cached_property
    def text(self) -> str:
        """The text of the last message."""
        messages = self.messages
        return _text(messages[-1] if isinstance(messages, list | tuple) and messages else messages)

    @cached_property
    def digest(self) -> int:
        """The same for the same messages and options."""
        return digest64((self.messages, dict(self.options)))


@dataclass(frozen=True, slots=True)
class Call:
    """A request and what was said to it; None where the script had nothing, or its async line is not made yet."""

    number: int
    request: Request
    said: Said | None

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.request.text


class FakeModel:
    """A language model that says what its script says.

    `script` is a line, a list of lines, or a dict of them by step. `complete` (and calling the model) answers with a
    `Reply`; `stream` streams it. Both take whatever a client's method takes: messages first or by name, options by
    name.
    """

    def __init__(self, script: Lines | Mapping[str, Lines] = (), *, by_request: bool = False) -> None:
        self.calls: list[Call] = []
        self._script = Script(script, by_request=by_request)

    @property
    def count(self) -> int:
        """How often it was asked."""
        return len(self.calls)

    @property
    def prompts(self) -> list[str]:
        """The last message's text of each call, in order."""
        return [call.text for call in self.calls]

    @property
    def left(self) -> int:
        """Lines of a list that nobody has heard yet."""
        return len(self._script.queue)

    async def complete(self, messages: Any = None, **options: Any) -> Reply:
        """The whole reply at once."""
        said = await self._asked(messages, options)()
        await _delay(said)
        return await _whole(said)

    async def __call__(self, messages: Any = None, **options: Any) -> Reply:
        return await self.complete(messages, **options)

    def stream(self, messages: Any = None, **options: Any) -> Streaming:
        """The reply piece by piece: `async for text in model.stream(...)`. The model is asked here, not when the first
        piece is."""
        return Streaming(self._asked(messages, options))

    def serve(self, port: int = 0) -> AbstractAsyncContextManager[str]:
        """The same behind an OpenAI-compatible endpoint: `async with model.serve() as base_url:`"""
        from perdure.testing.fake_model.serving import served

        return served(self, port)

    async def ask(self, request: Request) -> Said:
        """What the script says to a request, as a word and not as its effect. Counts as a call."""
        return await self._ask(request)()

    def _asked(self, messages: Any, options: dict[str, Any]) -> Callable[[], Awaitable[Said]]:
        here = frame.get()
        return self._ask(request_of(messages, options, here=here if isinstance(here, StepFrame) else None))

    def _ask(self, request: Request) -> Callable[[], Awaitable[Said]]:
        """Count the call and take its line; what comes back is called to hear it (only an async line takes time)."""
        said = self._script.next(request)
        call = Call(len(self.calls) + 1, request, said if isinstance(said, Said) else None)
        self.calls.append(call)
        if said is None:
            raise self._unscripted(request)
        return functools.partial(self._settle, call, said)

    async def _settle(self, call: Call, said: Said | Later) -> Said:
        if isinstance(said, Later):
            said = await self._script.settle(said)
            self.calls[call.number - 1] = replace(call, said=said)
        return said

    def _unscripted(self, request: Request) -> Unscripted:
        number = len(self.calls)
        by = "outside of a step" if request.step is None else f"by step {request.step!r}, try {request.attempt}"
        asked = request.text if len(request.text) <= SHOWN_CHARS_MAX else request.text[:SHOWN_CHARS_MAX] + "…"
        why, again = self._why_not(), self._hint(request)
        return Unscripted(f"call {number} of the fake model is not scripted: {why}. It was made {by}: {asked!r}{again}")

    def _why_not(self) -> str:
        """Why the script has nothing to say."""
        script = self._script
        if script.steps is not None:
            return f"the script is by step, and knows {', '.join(sorted(script.steps)) or 'none'}"
        said = sum(call.said is not None for call in self.calls)
        if script.whens and not script.ordered:
            return "none of its when(…) lines is for this message, or for any more of them"
        why = f"all its lines are said ({said} so far)" if said else "the script is empty"
        return f"{why}, and none of its when(…) lines is for this message" if script.whens else why

    def _hint(self, request: Request) -> str:
        """What to write for a call that was made before."""
        if self._script.steps is not None:
            return ""
        same = [call for call in self.calls[:-1] if call.said is not None and call.request.digest == request.digest]
        answered = [call for call in same if call.said is not None and is_answer(call.said.word)]
        if answered and not self._script.by_request:
            return (
                f". Call {answered[0].number} asked the same: a body that is repeated asks again, and FakeModel(…, "
                "by_request=True) gives it the same reply, as does a script by step, FakeModel({'step': …})"
            )
        if same and not answered:
            return f". Call {same[0].number} asked the same and failed: the script needs a line for the next try"
        return ""

    def __repr__(self) -> str:
        return f"<fake model, asked {self.count} times>"


class Streaming:
    """A reply on its way: an async iterator over its pieces of text. `reply` is the whole, once it is."""

    def __init__(self, hear: Callable[[], Awaitable[Said]]) -> None:
        self.reply: Reply | None = None
        self._pieces = self._say(hear)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def __anext__(self) -> str:
        return await anext(self._pieces)

    async def _say(self, hear: Callable[[], Awaitable[Said]]) -> AsyncIterator[str]:
        said = await hear()
        await _delay(said)
        pieces = said.word.pieces if isinstance(said.word, Stream) else ()
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
        whole = await _whole(said)
        if not pieces and whole.text:
            yield whole.text
        self.reply = whole


def request_of(messages: Any, options: dict[str, Any], *, here: StepFrame | None = None) -> Request:
    """A request from what a client's method was called with, in the body of this step."""
    options = dict(options)
    for name in ("messages", "input", "prompt"):
        if messages is None and name in options:
            messages = options.pop(name)
    if here is None:
        return Request(_kept(messages), _kept(options), None, 1)
    return Request(_kept(messages), _kept(options), here.key, here.attempt, here.name)


def _kept(value: Any) -> Any:
    """The same lists and dicts, in copies: an agent goes on to append to what it asked with."""
    if type(value) is dict:
        return {key: _kept(part) for key, part in value.items()}
    if type(value) is list or type(value) is tuple:
        return type(value)(_kept(part) for part in value)
    return value


async def _whole(said: Said) -> Reply:
    """What is said, to somebody who waits for all of it."""
    match said.word:
        case Reply() as whole:
            return whole
        case Stream(pieces, breaks=None):
            return reply(*pieces)
        case Stream(breaks=Refusal() as refusal) | (Refusal() as refusal):
            headers = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
            raise ModelRefused(f"{refusal.status}: {refusal.message}", status_code=refusal.status, headers=headers)
        case Stream() as broken:
            raise StreamBroken(f"the connection broke after {broken.text!r}", partial=broken.text)
        case Silence(gives_up=True):
            raise ModelTimeout("the model was silent for too long")
        case Silence():
            await asyncio.get_running_loop().create_future()
            raise AssertionError("nobody resolves it")
        case Disconnection():
            raise ModelUnreachable("the connection was closed before an answer came")
        case BaseException() as error:
            raise error
        case _:
            assert_never(said.word)


async def _delay(said: Said) -> None:
    if said.delay_s:
        await asyncio.sleep(said.delay_s)  # what a slow model is


def _text(message: Any) -> str:
    """The text in a message: a string, its `content`, or the texts of its content's parts."""
    match message:
        case None:
            return ""
        case str():
            return message
        case Mapping():
            return _text(message.get("content", message.get("text")))
        case list() | tuple():
            return "".join(_text(part) for part in message)
    for name in ("content", "text"):
        if hasattr(message, name):
            return _text(getattr(message, name))
    return str(message)
