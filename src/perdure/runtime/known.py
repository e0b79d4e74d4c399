"""Whom a task waits for: futures that only its own run, or something durable, resolves.

A task that does not run waits on a future. Who resolves that future is known in these cases, and in no others:

- it is a durable wait's own (`Durable`), or a live task of the same run;
- it is what `gather` waits on, and every unfinished child of it is known;
- it is what `shield`, `asyncio.wait`, `as_completed` or a `TaskGroup` waits on: one of the run's known futures will
  resolve it, which is seen by what of asyncio's that future calls when it is done. (`asyncio.wait` names all the
  futures that can end it: each must be known.)

Timers of the event loop that hang over a task (`asyncio.timeout`) are found on the stacks of its coroutines.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Iterable, Iterator
from types import CellType, MethodType
from typing import Any, Final

CHAIN_MAX: Final = 1_000
"""How deep coroutines that await each other are followed; deeper ones count as raw."""

_STACKED: Final = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
_ON_A_STACK: Final = frozenset({"coroutine", "async_generator", "generator"})
_COMPLETING: Final = "_AsCompletedIterator"


class Durable(asyncio.Future[Any]):
    """What a task waits on in a durable wait."""


class Known:
    """The futures that only one run, or something durable, resolves: as it is now."""

    def __init__(self, tasks: Iterable[asyncio.Future[Any]], waits: Iterable[Durable]) -> None:
        self._parts = (tasks, waits)
        self._set: set[asyncio.Future[Any]] | None = None
        self._fed: set[int] | None = None
        self.pending: list[asyncio.Future[Any]] = []
        """What it has looked at, and was not done."""

    def unknown(self, future: asyncio.Future[Any], chain: list[Any]) -> asyncio.Future[Any] | None:
        """What keeps this future from being one of these: itself, or one that it depends on; None if it is one.
        `chain` is the stack of who waits on it."""
        self.pending.append(future)
        if isinstance(future, Durable) or future in self._own:
            return None
        children = getattr(future, "_children", None)
        if children is not None:
            return self._first_unknown(children)
        if self._fed is None:
            self._fed = set(_fed(self._own))
        if id(future) not in self._fed and not any(id(each) in self._fed for each in _queues(future, chain)):
            return future
        return self._first_unknown(_waited_for(chain))

    def _first_unknown(self, futures: Iterable[asyncio.Future[Any]]) -> asyncio.Future[Any] | None:
        found = (self.unknown(each, []) for each in futures if not each.done())
        return next((each for each in found if each is not None), None)

    @property
    def _own(self) -> set[asyncio.Future[Any]]:
        if self._set is None:
            self._set = {each for part in self._parts for each in part}
        return self._set


# -- what is called when a future is done ------------------------------------------------------------------------


def _fed(own: Iterable[asyncio.Future[Any]]) -> Iterator[int]:
    """What these futures resolve when they are done: futures, and queues that those who wait for one stand at."""
    for thing in fed_by(own):
        yield id(thing)


def fed_by(own: Iterable[asyncio.Future[Any]]) -> list[Any]:
    """The futures that asyncio resolves when one of these is done, and the queues it fills."""
    seen: set[int] = set()
    found: list[Any] = []
    left = list(own)
    while left:
        for thing in _called_with(left.pop()):
            if id(thing) in seen or isinstance(thing, asyncio.Task):
                continue
            if isinstance(thing, asyncio.Future):
                left.append(thing)
            elif not isinstance(thing, asyncio.Queue):
                continue
            seen.add(id(thing))
            found.append(thing)
    return found


def _called_with(future: asyncio.Future[Any]) -> Iterator[Any]:
    """What asyncio's own callbacks of a future hold: in their closures, as arguments, and in the object whose method
    they are. Other callbacks may resolve a future, too, but they need not be the only ones."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        function = getattr(callback, "func", callback)
        if not str(getattr(function, "__module__", "")).startswith("asyncio."):
            continue
        yield from getattr(callback, "args", ())
        yield from _held_by(getattr(callback, "__self__", None))
        for cell in getattr(function, "__closure__", None) or ():
            yield from gc.get_referents(cell)


def _held_by(thing: Any) -> Iterator[Any]:
    yield thing
    if type(thing).__name__ in ("TaskGroup", _COMPLETING):
        yield from vars(thing).values()


# -- what is on the stack of a task ------------------------------------------------------------------------------


def stack(coro: Any) -> list[Any]:
    """The coroutines and generators that await each other, the innermost last; at most `CHAIN_MAX`."""
    found: list[Any] = []
    while coro is not None and len(found) < CHAIN_MAX:
        found.append(coro)
        if type(coro).__name__ in _STACKED:
            coro = next((each for each in gc.get_referents(coro) if type(each).__name__ in _ON_A_STACK), None)
        else:
            inner = (getattr(coro, name, None) for name in ("cr_await", "ag_await", "gi_yieldfrom"))
            coro = next((each for each in inner if each is not None), None)
    return found


def _queues(future: asyncio.Future[Any], chain: list[Any]) -> Iterator[Any]:
    """The queue that a task stands at, if it is at one that only this run's futures fill (`as_completed`)."""
    for each in chain[-2:]:
        frame = getattr(each, "cr_frame", None)
        if frame is None:
            continue
        queue = frame.f_locals.get("self")
        if isinstance(queue, asyncio.Queue) and future in queue._getters:  # type: ignore[attr-defined]
            yield queue


def _waited_for(chain: list[Any]) -> Iterable[asyncio.Future[Any]]:
    """The futures that `asyncio.wait` waits for, if that is where the stack ends."""
    for each in chain[-2:]:
        code = getattr(each, "cr_code", None)
        frame = getattr(each, "cr_frame", None)
        if code is not None and frame is not None and code.co_name == "_wait" and "fs" in frame.f_locals:
            waited: Iterable[asyncio.Future[Any]] = frame.f_locals["fs"]
            return waited
    return ()


def is_timed(chain: list[Any]) -> bool:
    """Whether a timer of the event loop hangs over one of these: in a variable, or in a context manager or an iterator
    that is open there."""
    left = list(chain)
    seen: set[int] = set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found = list(_hung_on(each))
        if any(map(_is_timer, found)):
            return True
        left += found
    return False


def _hung_on(thing: Any) -> Iterator[Any]:
    """What is a timer, or may lead to one: among the variables and on the stack of a coroutine or a generator, in a
    context manager that is open there, and in what an exit stack will call."""
    if type(thing).__name__ in _ON_A_STACK or isinstance(thing, CellType):
        yield from filter(_leads_on, gc.get_referents(thing))
    elif type(thing).__name__ == _COMPLETING:
        yield from filter(_leads_on, vars(thing).values())
    elif isinstance(thing, MethodType):
        for held in _attributes(thing.__self__):
            if _leads_on(held):
                yield held
            elif isinstance(held, deque):  # an exit stack's
                yield from (each for pair in held if isinstance(pair, tuple) for each in pair if _leads_on(each))


def _leads_on(thing: Any) -> bool:
    return (
        isinstance(thing, MethodType | CellType)
        or type(thing).__name__ in _ON_A_STACK
        or type(thing).__name__ == _COMPLETING
        or _is_timer(thing)
    )


def _attributes(owner: Any) -> Iterator[Any]:
    yield from getattr(owner, "__dict__", {}).values()
    for cls in type(owner).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(owner, name, None)


def _is_timer(thing: Any) -> bool:
    """A timer of the event loop that is still to come (uvloop has its own class)."""
    return type(thing).__name__ == "TimerHandle" and not thing.cancelled()
