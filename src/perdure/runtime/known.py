"""Whom a task waits for: futures that only its own run, or something durable, resolves.

A task that does not run waits on a future. Who resolves that future is known in these cases, and in no others:

- it is a durable wait's own (`Durable`), or a live task of the same run;
- it is what `gather` waits on, and every unfinished child of it is known;
- it is what `shield`, `asyncio.wait`, `as_completed` or a `TaskGroup` waits on: one of the run's known futures will
  resolve it, which is seen by what of asyncio's that future calls when it is done. (`asyncio.wait` names all the
  futures that can end it: each must be known.)
- it stands at a lock, a semaphore, an event, a condition or a queue that nobody but the run's own tasks has: as many
  references as lead to it from their stacks, so many there are.

Timers of the event loop that hang over a task (`asyncio.timeout`) are found on the stacks of its coroutines.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

CHAIN_MAX: Final = 1_000
"""How deep coroutines that await each other are followed; deeper ones count as raw."""

_STACKED: Final = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
_ON_A_STACK: Final = frozenset({"coroutine", "async_generator", "generator"})
_COMPLETING: Final = "_AsCompletedIterator"
_TIMER: Final = "TimerHandle"
_LEADING: Final = _ON_A_STACK | {"method", "cell", _COMPLETING, _TIMER}
_ON_THE_WAY: Final = frozenset({"cell", "function", "method"})
_PLACES: Final = (asyncio.Lock, asyncio.Semaphore, asyncio.Event, asyncio.Condition, asyncio.Queue)


class Durable(asyncio.Future[Any]):
    """What a task waits on in a durable wait."""


class Known:
    """The futures that only one run, or something durable, resolves: as it is now."""

    def __init__(self, tasks: Iterable[asyncio.Future[Any]], waits: Iterable[Durable]) -> None:
        self._parts = (tasks, waits)
        self._set: set[asyncio.Future[Any]] | None = None
        self._fed: set[int] | None = None
        self._local: dict[int, bool] = {}
        self._stacks: dict[int, list[Any]] = {}
        self._untimed: set[int] = set()
        self.pending: list[asyncio.Future[Any]] = []
        """What it has looked at, and was not done."""

    def keeps(self, task: asyncio.Task[Any], waits_on: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
        """What keeps this task from being at rest; None where nothing does."""
        chain = self._stack(task)
        found = self._unknown(waits_on, chain)
        if found is None and (len(chain) >= CHAIN_MAX or _timed(chain, self._untimed)):
            return waits_on
        return found

    def _stack(self, task: asyncio.Task[Any]) -> list[Any]:
        if id(task) not in self._stacks:
            self._stacks[id(task)] = stack(task.get_coro())
        return self._stacks[id(task)]

    def _unknown(self, future: asyncio.Future[Any], chain: list[Any]) -> asyncio.Future[Any] | None:
        """What keeps this future from being known: itself, or one that it depends on; None if it is known. `chain` is
        the stack of who waits on it."""
        self.pending.append(future)
        if isinstance(future, Durable) or future in self._own:
            return None
        children = getattr(future, "_children", None)
        if children is not None:
            return self._first_unknown(children)
        if self._fed is None:
            self._fed = set(_fed(self._own))
        if id(future) in self._fed:
            return self._first_unknown(_waited_for(chain))
        place = _place_of(future, chain)
        if place is None:
            return future
        references = _references_to(place) - _OWN
        return None if id(place) in self._fed or self._is_local(place, references) else future

    def _first_unknown(self, futures: Iterable[asyncio.Future[Any]]) -> asyncio.Future[Any] | None:
        found = (self._unknown(each, []) for each in futures if not each.done())
        return next((each for each in found if each is not None), None)

    def _is_local(self, place: Any, references: int) -> bool:
        """Whether nobody has it but the tasks of this run, who has so many references to it besides who asks."""
        if id(place) not in self._local:
            tasks = [task for task in self._parts[0] if isinstance(task, asyncio.Task)]
            stacked = [each for task in tasks for each in self._stack(task)]
            self._local[id(place)] = _is_owned(place, references, stacked)
        return self._local[id(place)]

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


def at_places(tasks: Iterable[asyncio.Future[Any]]) -> list[asyncio.Future[Any]]:
    """What those of these tasks wait on that stand at a lock, a queue or the like."""
    found = ((task, task._fut_waiter) for task in tasks if isinstance(task, asyncio.Task))  # type: ignore[attr-defined]
    plain = [(task, future) for task, future in found if type(future) is asyncio.Future]
    return [future for task, future in plain if _place_of(future, stack(task.get_coro())) is not None]


def _place_of(future: asyncio.Future[Any], chain: list[Any]) -> Any:
    """The lock, the queue or the like that a task stands at; None if it is at none."""
    for each in chain[-2:]:
        for thing in gc.get_referents(each):
            if isinstance(thing, _PLACES):
                queues = (getattr(thing, name, None) for name in ("_waiters", "_getters", "_putters"))
                if any(queue is not None and future in queue for queue in queues):
                    return thing
    return None


def _is_owned(place: Any, references: int, stacked: list[Any]) -> bool:
    """Whether all references to this lead to it from these stacks, and nobody else has a part of the way: a variable
    that nested functions share, such a function, or a bound method may be in other hands as well."""
    counts: Counter[int] = Counter()
    nodes: dict[int, Any] = {}
    left, seen = list(stacked), set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for thing in _parts(each):
            if thing is place:
                counts[id(place)] += 1
            elif type(thing).__name__ in _ON_A_STACK:
                left.append(thing)
            elif type(thing).__name__ in _ON_THE_WAY:
                counts[id(thing)] += 1
                nodes[id(thing)] = thing
                left.append(thing)
    if counts[id(place)] != references:
        return False
    shared = [node for node in nodes.values() if _references_to(node) - _OWN - 1 != counts[id(node)]]
    return not any(_leads_to(node, place, set()) for node in shared)


def _parts(thing: Any) -> Iterable[Any]:
    """What it refers to; of a function, the variables that it shares."""
    return (thing.__closure__ or ()) if type(thing).__name__ == "function" else gc.get_referents(thing)


def _leads_to(thing: Any, place: Any, seen: set[int]) -> bool:
    seen.add(id(thing))
    parts = [each for each in _parts(thing) if id(each) not in seen]
    return any(each is place or (type(each).__name__ in _ON_THE_WAY and _leads_to(each, place, seen)) for each in parts)


def _references_to(thing: Any) -> int:
    return sys.getrefcount(thing)


def _references_of_who_asks() -> int:
    """What `_references_to` finds besides those that are looked for: its own, and the variable of its caller."""
    thing = object()
    return _references_to(thing)


_OWN: Final = _references_of_who_asks()


def _waited_for(chain: list[Any]) -> Iterable[asyncio.Future[Any]]:
    """The futures that `asyncio.wait` waits for, if that is where the stack ends."""
    for each in chain[-2:]:
        code = getattr(each, "cr_code", None)
        frame = getattr(each, "cr_frame", None)
        if code is not None and frame is not None and code.co_name == "_wait" and "fs" in frame.f_locals:
            waited: Iterable[asyncio.Future[Any]] = frame.f_locals["fs"]
            return waited
    return ()


def _timed(chain: list[Any], seen: set[int]) -> bool:
    """Whether a timer of the event loop hangs over one of these: in a variable, or in a context manager or an iterator
    that is open there. What has been `seen` is left out."""
    left = list(chain)
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
    name = type(thing).__name__
    if name in _ON_A_STACK or name == "cell":
        yield from filter(_leads_on, gc.get_referents(thing))
    elif name == _COMPLETING:
        yield from filter(_leads_on, vars(thing).values())
    elif name == "method":
        owner = thing.__self__
        yield from filter(_leads_on, _attributes(owner))
        if isinstance(owner, ExitStack | AsyncExitStack):
            yield from (each for pair in owner._exit_callbacks for each in pair if _leads_on(each))  # type: ignore[union-attr]


def _leads_on(thing: Any) -> bool:
    return type(thing).__name__ in _LEADING


def _attributes(owner: Any) -> Iterator[Any]:
    yield from getattr(owner, "__dict__", {}).values()
    for cls in type(owner).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            yield getattr(owner, name, None)


def _is_timer(thing: Any) -> bool:
    """A timer of the event loop that is still to come (uvloop has its own class)."""
    return type(thing).__name__ == _TIMER and not thing.cancelled()
