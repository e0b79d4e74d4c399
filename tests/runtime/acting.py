"""What agents of the tests of waiting do: steps that are counted, and places at which they stand still."""

from __future__ import annotations

import asyncio

import perdure

begun: list[str] = []
"""The bodies of `mark` that have begun, since a test cleared it."""


@perdure.step
async def mark(what: str) -> str:
    """A step that can be counted."""
    begun.append(what)
    return what


class Stop:
    """A place at which the first that comes stands still, so that a test can crash it there."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = False

    async def pass_by(self) -> None:
        if not self.open:
            self.reached.set()
            await asyncio.Event().wait()
