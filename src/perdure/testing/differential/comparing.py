"""Comparing what stores answer, and making a program that tells them apart short.

The first ground is the reference. A difference is the first answer that is not everybody's; what follows it may differ
because of it, and is not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from perdure.testing.differential.answers import parting

Step = TypeVar("Step")

Tell = Callable[[Sequence[Step]], Awaitable[list[Any]]]
"""Tells a program to one fresh store; the answers."""

TRIES_MAX: Final = 600
"""Programs tried to make one shorter: enough for one of a hundred operations, and bounded."""


@dataclass(frozen=True, slots=True)
class Difference(Generic[Step]):
    """Two or more stores answered one operation of a program differently."""

    program: Sequence[Step]
    number: int
    """The operation's place in the program, from 0."""
    answers: Mapping[str, Any]
    """What each store answered, the reference first."""

    @property
    def operation(self) -> Step:
        return self.program[self.number]

    def described(self) -> str:
        """The program, and what the stores answered to its last operation."""
        lines = [f"{number:4}  {operation}" for number, operation in enumerate(self.program[: self.number + 1])]
        return "\n".join([*lines, *self.parted()])

    def parted(self) -> list[str]:
        """A line for each store: what it answered where the answers part."""
        (reference, expected), *others = self.answers.items()
        lines: list[str] = []
        for name, found in others:
            if found != expected:
                path, mine, theirs = parting(expected, found)
                where = f" at {path.lstrip('.')}" if path else ""
                lines += [f"  {reference:>10} answered{where}: {mine!r}", f"  {name:>10} answered{where}: {theirs!r}"]
        return lines


async def compare(program: Sequence[Step], stores: Mapping[str, Tell[Step]]) -> Difference[Step] | None:
    """Tell the program to every store; the first difference, or None."""
    told = await asyncio.gather(*(tell(program) for tell in stores.values()))
    for number, answers in enumerate(zip(*told, strict=True)):
        if any(answer != answers[0] for answer in answers[1:]):
            return Difference(program, number, dict(zip(stores, answers, strict=True)))
    return None


async def shrink(
    found: Difference[Step],
    stores: Mapping[str, Tell[Step]],
    *,
    kind: Callable[[Step], object] = type,
    lighter: Callable[[Step], Sequence[Step]] = lambda step: (),
) -> Difference[Step]:
    """A program as short as trying makes it that still tells the stores apart, by an operation of the same kind.

    Whatever comes after the difference goes at once. Then halves, quarters and so on are left out, down to single
    operations, as long as something goes; at last operations are replaced by lighter ones.
    """
    attempt = _Attempts(stores, kind)
    best = Difference(found.program[: found.number + 1], found.number, found.answers)
    size = len(best.program) // 2
    while size:
        shorter = await attempt.first(best, _without(best.program, size))
        if shorter is not None:
            best, size = shorter, min(size, len(shorter.program) // 2) or 1
        else:
            size //= 2
    while (shorter := await attempt.first(best, _lightened(best.program, lighter))) is not None:
        best = shorter
    return best


class _Attempts(Generic[Step]):
    """Tries programs, a bounded number of them."""

    def __init__(self, stores: Mapping[str, Tell[Step]], kind: Callable[[Step], object]) -> None:
        self._stores = stores
        self._kind = kind
        self._left = TRIES_MAX

    async def first(self, best: Difference[Step], programs: Sequence[Sequence[Step]]) -> Difference[Step] | None:
        """The difference of the first of these programs that has one like the best so far."""
        for program in programs:
            if not self._left:
                return None
            self._left -= 1
            found = await compare(program, self._stores)
            if found is not None and self._kind(found.operation) == self._kind(best.operation):
                return Difference(found.program[: found.number + 1], found.number, found.answers)
        return None


def _without(program: Sequence[Step], size: int) -> list[Sequence[Step]]:
    """The programs that lack one stretch of this size, the last operation kept."""
    ends = range(len(program) - 1, 0, -size)
    return [[*program[: max(0, end - size)], *program[end:]] for end in ends]


def _lightened(program: Sequence[Step], lighter: Callable[[Step], Sequence[Step]]) -> list[Sequence[Step]]:
    """The programs that have one operation lighter."""
    return [[*program[:at], light, *program[at + 1 :]] for at, step in enumerate(program) for light in lighter(step)]
