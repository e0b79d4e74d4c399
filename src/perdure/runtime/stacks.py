"""What is on the stack of a task: the coroutines that await each other, and the timers of the event loop that hang over
them.

A timer is seen in a variable, and in what a variable refers to (a limit that a library keeps in an object); in a
context manager or an iterator that is open there; in what an exit stack will call. One that is farther away is not.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

CHAIN_MAX: Final = 1_000
"""How deep coroutines that await each other are followed; deeper ones count as raw."""

ON_A_STACK: Final = frozenset({"coroutine", "async_generator", "generator"})
COMPLETING: Final = "_AsCompletedIterator"

_STACKED: Final = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
_TIMER: Final = "TimerHandle"
_LEADING: Final = ON_A_STACK | {"method", "cell", COMPLETING, _TIMER}
_PLAIN: Final = frozenset({"builtins", "asyncio", "_asyncio", "uvloop", "perdure"})
"""Packages whose objects have no timers of the user's, or such as are looked for by other ways."""


def stack(coro: Any) -> list[Any]:
    """The coroutines and generators that await each other, the innermost last; at most `CHAIN_MAX`."""
    found: list[Any] = []
    while coro is not None and len(found) < CHAIN_MAX:
        found.append(coro)
        if type(coro).__name__ in _STACKED:
            coro = next((each for each in gc.get_referents(coro) if type(each).__name__ in ON_A_STACK), None)
        else:
            inner = (getattr(coro, name, None) for name in ("cr_await", "ag_await", "gi_yieldfrom"))
            coro = next((each for each in inner if each is not None), None)
    return found


def timed(chain: list[Any], seen: set[int]) -> bool:
    """Whether a timer of the event loop hangs over one of these. What has been `seen` is left out."""
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
    """What is a timer, or may lead to one."""
    name = type(thing).__name__
    if name in ON_A_STACK or name == "cell":
        for each in gc.get_referents(thing):
            yield from (each,) if _leads_on(each) else filter(_is_timer, _kept_by(each))
    elif name == COMPLETING:
        yield from filter(_leads_on, vars(thing).values())
    elif name == "method":
        owner = thing.__self__
        yield from filter(_leads_on, _attributes(owner))
        if isinstance(owner, ExitStack | AsyncExitStack):
            yield from (each for pair in owner._exit_callbacks for each in pair if _leads_on(each))  # type: ignore[union-attr]


def _kept_by(thing: Any) -> Iterator[Any]:
    """The attributes of an object, whatever its class makes of an access to them."""
    if type(thing).__module__.partition(".")[0] in _PLAIN:
        return
    for each in gc.get_referents(thing):
        if type(each) is dict:
            yield from each.values()
        else:
            yield each


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
