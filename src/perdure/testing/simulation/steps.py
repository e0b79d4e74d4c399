"""The steps of a simulated world.

A body returns a fresh token, which no other execution in this world has returned. So a result tells which executions
it was made of, and the log must tell the same: what an agent saw live is what is on disk.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

import perdure
from perdure import Retry
from perdure.testing.simulation.played import world_here

TRIES: Final = Retry(attempts=3, delay_s=0.2, max_delay_s=1.0)
HEAVY: Final = 5_000


class Token(msgspec.Struct, frozen=True):
    """What a body returns: which execution it was, and for which call."""

    number: int
    label: str
    deployment: str


def _token(label: str) -> Token:
    return Token(world_here().next_token(), label, perdure.current().deployment)


@perdure.step(retry=TRIES)
async def work(label: str) -> Token:
    """A repeatable step."""
    return _token(label)


@perdure.step(retry=TRIES, timeout=2.0)
async def limited(label: str) -> Token:
    """A step with a time limit; bodies that are slow run into it."""
    return _token(label)


@perdure.step(retry=TRIES, durability="sync")
async def careful(label: str) -> Token:
    """A step after which nothing goes on before it is on disk."""
    return _token(label)


@perdure.step(retry=Retry(attempts=2, delay_s=0.1))
async def broken(label: str) -> Token:
    """A step that fails until its run is sent on by an operator, and works then."""
    if not world_here().mended(perdure.current().run_id):
        raise ConnectionError("out of order")
    return _token(label)


@perdure.step(retry=TRIES)
async def big(label: str) -> list[str]:
    """A result that becomes a blob."""
    return [_token(label).label.ljust(8)] * HEAVY


@perdure.step(retry=TRIES)
def computed(label: str) -> Token:
    """A plain function."""
    return _token(label)


@perdure.step(retry=TRIES)
async def pair(label: str) -> Any:
    """What it returns comes back from the record as a list."""
    return (_token(label).number, label)


@perdure.step(retry=Retry(attempts=1))
async def flaky(label: str) -> Token:
    """A step that fails once in each run, finally."""
    if world_here().times(perdure.current().run_id) == 1:
        raise ValueError("out of order, this once")
    return _token(label)


@perdure.step(retry=Retry(attempts=8, delay_s=0.1, max_delay_s=0.2))
async def stumbling(label: str) -> Token:
    """A step that succeeds at the fourth try in each run."""
    if world_here().times(perdure.current().run_id) < 4:
        raise ConnectionError("not yet")
    return _token(label)


@perdure.step(retry=Retry(attempts=20, delay_s=0.1))
async def deadly(label: str) -> Token:
    """A step that kills its process, until somebody has mended it; the world sees to that."""
    return _token(label)


@perdure.step(retry=TRIES)
async def reserve(label: str) -> Token:
    """A step that is to be undone, should it come to that."""
    return _token(label)


@perdure.step(retry=Retry(attempts=20, delay_s=0.1, max_delay_s=0.5))
async def undo(label: str, seen: list[Any]) -> Token:
    """What takes back what was done: it is called with all that its agent has seen until then, so that an agent that
    sees something else in a replay diverges."""
    return _token(label)


STEPS: Final = (
    work, limited, careful, broken, big, computed, pair, flaky, stumbling, deadly, reserve, undo,
)  # fmt: skip
