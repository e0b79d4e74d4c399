"""Looking for seeds on which stores differ, at both levels: a store's verbs, and an app on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.testing.differential import author, playwright
from perdure.testing.differential.acting import act
from perdure.testing.differential.batches import UNIVERSE
from perdure.testing.differential.comparing import Difference, Tell, compare, shrink
from perdure.testing.differential.grounds import StoreGround
from perdure.testing.differential.operations import Call
from perdure.testing.differential.performing import perform, short_queues


@dataclass(frozen=True, slots=True)
class Level:
    """A kind of program: how one is written, told and made shorter."""

    name: str
    length: int
    """Operations of one program."""
    write: Callable[[int, int], Awaitable[Sequence[Any]]] = field(repr=False)
    tell: Callable[[Sequence[Any], Any], Awaitable[list[Any]]] = field(repr=False)

    def on(self, grounds: Sequence[StoreGround]) -> Mapping[str, Tell[Any]]:
        """How a program is told to each of these, by its name."""

        def telling(ground: StoreGround) -> Tell[Any]:
            return lambda program: self.tell(program, ground)

        return {ground.name: telling(ground) for ground in grounds}


async def _tell_store(program: Sequence[Any], ground: StoreGround) -> list[Any]:
    with short_queues():
        return await perform(program, ground, universe=UNIVERSE)


STORE: Final = Level("store", 60, author.write, _tell_store)
APP: Final = Level("app", 16, playwright.write, act)
LEVELS: Final = {level.name: level for level in (STORE, APP)}


async def differ(level: Level, seed: int, grounds: Sequence[StoreGround]) -> Difference[Any] | None:
    """How the stores differ on this seed's program, or None."""
    return await compare(await level.write(seed, level.length), level.on(grounds))


async def shortened(level: Level, found: Difference[Any], grounds: Sequence[StoreGround]) -> Difference[Any]:
    """The same difference by a short program."""
    return await shrink(found, level.on(grounds), kind=_kind, lighter=_lighter)


def _kind(operation: Any) -> object:
    return operation.verb if isinstance(operation, Call) else type(operation)


def _lighter(operation: Any) -> Sequence[Any]:
    return operation.lighter() if isinstance(operation, Call) else ()
