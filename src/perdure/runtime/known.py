"""Whom a task waits for: futures that only its own run, or something durable, resolves.

A task that does not run waits on a future. Who resolves that future is known in these cases, and in no others:

- it is a durable wait's own (`Durable`), or a live task of the same run;
- it is what `gather` waits on, and every unfinished child of it is known;
- it is what `shield`, `asyncio.wait`, `as_completed` or a `TaskGroup` waits on: one of the run's known futures will
  resolve it, which is seen by what of asyncio's that future calls when it is done. (`asyncio.wait` and `as_completed`
  name all the futures that can end it: each must be known. So must the gathering or the shield between it and the run's
  futures, for which others may be needed, too.)
- it stands at a lock, a semaphore, an event, a condition or a queue that nobody but the run's own tasks has: as many
  references as lead to it from their stacks, so many there are, and no weak one.

Timers of the event loop that hang over a task (`asyncio.timeout`) are found on the stacks of its coroutines
(`stacks.py`).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from perdure.runtime.stacks import CHAIN_MAX, COMPLETING, ON_A_STACK, stack, timed

_ON_THE_WAY: Final = frozenset({"cell", "function", "method"})
_PLACES: Final = (asyncio.Lock, asyncio.Semaphore, asyncio.Event, asyncio.Condition, asyncio.Queue)


class Durable(asyncio.Future[Any]):
    """What a task waits on in a durable wait."""


class Known:
    """The futures that only one run, or something durable, resolves: as it is now."""

    def __init__(self, tasks: Iterable[asyncio.Future[Any]], waits: Iterable[Durable]) -> None:
        self._parts = (tasks, waits)
        self._set: set[asyncio.Future[Any]] | None = None
        self._fed: dict[int, list[asyncio.Future[Any]]] | None = None
        """By the id of a queue: what fills it, where that is not one of the run's futures alone. By that of a future:
        what resolves it."""
        self._local: dict[int, bool] = {}
        self._stacks: dict[int, list[Any]] = {}
        self._untimed: set[int] = set()
        self.pending: list[asyncio.Future[Any]] = []
        """What it has looked at, and was not done."""

    def keeps(self, task: asyncio.Task[Any], waits_on: asyncio.Future[Any]) -> asyncio.Future[Any] | None:
        """What keeps this task from being at rest; None where nothing does."""
        chain = self._stack(task)
        found = self._unknown(waits_on, chain)
        if found is None and (len(chain) >= CHAIN_MAX or timed(chain, self._untimed)):
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
            self._fed = {id(thing): filling for thing, filling in fed_by(self._own)}
        if id(future) in self._fed:
            return self._first_unknown([*self._fed[id(future)], *_waited_for(chain)])
        place = _place_of(future, chain)
        if place is None:
            return future
        references = _references_to(place) - _OWN
        if id(place) in self._fed:
            return self._first_unknown(self._fed[id(place)])
        return None if self._is_local(place, references) else future

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


def fed_by(own: Iterable[asyncio.Future[Any]]) -> list[tuple[Any, list[asyncio.Future[Any]]]]:
    """The futures that asyncio resolves when one of these is done, each with the one that does; and the queues it
    fills, each with all that fill it."""
    seen: set[int] = set()
    found: list[tuple[Any, list[asyncio.Future[Any]]]] = []
    left = list(own)
    while left:
        feeding = left.pop()
        for things in _called_with(feeding):
            filling = [each for part in things if isinstance(part, set) for each in part]
            for thing in things:
                if id(thing) in seen or isinstance(thing, asyncio.Task):
                    continue
                if isinstance(thing, asyncio.Future):
                    left.append(thing)
                elif not isinstance(thing, asyncio.Queue):
                    continue
                seen.add(id(thing))
                found.append((thing, [feeding] if isinstance(thing, asyncio.Future) else filling))
    return found


def _called_with(future: asyncio.Future[Any]) -> Iterator[list[Any]]:
    """What each of asyncio's own callbacks of a future holds: in its closure, as arguments, and in the object whose
    method it is. Other callbacks may resolve a future, too, but they need not be the only ones."""
    for callback, _ in getattr(future, "_callbacks", None) or ():
        function = getattr(callback, "func", callback)
        if str(getattr(function, "__module__", "")).startswith("asyncio."):
            yield [
                *getattr(callback, "args", ()),
                *_held_by(getattr(callback, "__self__", None)),
                *(each for cell in getattr(function, "__closure__", None) or () for each in gc.get_referents(cell)),
            ]


def _held_by(thing: Any) -> Iterator[Any]:
    yield thing
    if type(thing).__name__ in ("TaskGroup", COMPLETING):
        yield from vars(thing).values()


# -- where tasks stand -------------------------------------------------------------------------------------------


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
    """Whether all references to this lead to it from these stacks, none of them is weak, and nobody else has a part of
    the way: a variable that nested functions share, such a function, or a bound method may be in other hands as
    well."""
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
            elif type(thing).__name__ in ON_A_STACK:
                left.append(thing)
            elif type(thing).__name__ in _ON_THE_WAY:
                counts[id(thing)] += 1
                nodes[id(thing)] = thing
                left.append(thing)
    if counts[id(place)] != references or weakref.getweakrefcount(place):
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
