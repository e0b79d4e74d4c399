"""Agents that read and write messages.

What a message says is who sent it and which one of his it is, so that whoever sees it knows whether one before it is
missing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

import perdure
from perdure.testing.simulation.roles import Log, Role, agent_of, failed, numbered
from perdure.testing.simulation.steps import undo, work

PATIENCE_S: Final = (None, 0.3, 2.0, 6.0)
THREADS: Final = ("reader on thread 0", "reader on thread 1", "picky on thread 0", "gone on thread 7")
"""Where these agents write to. Not all of these threads are there in every world."""


class Letter(msgspec.Struct, frozen=True):
    """A message of a type of its own."""

    by: str
    n: int


class BadLetter(msgspec.Struct, frozen=True):
    """What does not load as a `Letter` and comes under its name."""

    nonsense: str


BadLetter.__name__ = Letter.__name__


async def reader(count: int, seconds: float | None) -> list[Any]:
    """Reads so many messages, whatever they are."""
    found: list[Any] = []
    for _ in range(count):
        try:
            found.append(await perdure.receive(timeout=seconds))
        except perdure.TimedOut:
            found.append("none")
            break
        await work(f"after {len(found)}: {found[-1]}")
    return found


async def picky(seconds: float) -> list[Any]:
    """Reads a letter first, then what is none, then anything; what does not come in time is left out."""
    found: list[Any] = []
    for kind in (Letter, "dict", None):
        try:
            found.append(msgspec.to_builtins(await perdure.receive(kind, timeout=seconds)))
        except perdure.TimedOut:
            found.append("none")
    await undo("what was read", found)
    return found


async def sharing(seconds: float) -> list[Any]:
    """Reads with several branches, in a limited time: no two get the same message."""

    async def branch() -> Any:
        try:
            return await perdure.receive(timeout=seconds)
        except perdure.TimedOut:
            return "none"

    found: list[Any] = []
    try:
        async with perdure.timeout(seconds * 2):
            found += await asyncio.gather(*(branch() for _ in range(3)))
            found.append(await perdure.receive())
    except perdure.TimedOut:
        found.append("over")
    await undo("what was read", found)
    return found


async def writer(label: str, to: str, count: int, on_full: str) -> list[str]:
    """Writes so many messages to a thread, and says what became of each."""
    became: list[str] = []
    for n in range(count):
        message: Any = {"by": label, "n": n} if n % 2 else Letter(label, n)
        try:
            await perdure.send(to, message, on_full="reject" if on_full == "reject" else "block")
            became.append("sent")
        except perdure.NotFound:
            became.append("NotFound")
        except perdure.MailboxFull:
            became.append("MailboxFull")
        await work(f"{label} {n} {became[-1]}")
    return became


def _of_reader(args: tuple[Any, ...], log: Log) -> Any:
    keys = [key for key in numbered("receive", args[0]) if key in log]
    found = ["none" if failed(log, key) == "TimedOut" else log[key][1] for key in keys]  # its type's name comes first
    assert len(found) == args[0] or found[-1] == "none", "it has read all that it wanted, or was told that none came"
    return found


def _of_picky(args: tuple[Any, ...], log: Log) -> Any:
    return ["none" if failed(log, key) == "TimedOut" else log[key][1] for key in numbered("receive", 3)]


def _of_writer(args: tuple[Any, ...], log: Log) -> Any:
    return [failed(log, key) or "sent" for key in numbered("send", args[2])]


def _writes(n: int) -> tuple[Any, ...]:
    return (f"writer {n}", THREADS[n % len(THREADS)], 1 + n % 4, "block" if n % 3 else "reject")


CORRESPONDENTS: Final = (
    Role(agent_of(reader), lambda n: (1 + n % 4, PATIENCE_S[n % 4]), _of_reader, reads=True),
    Role(agent_of(picky), lambda n: (PATIENCE_S[1 + n % 3],), _of_picky, reads=True),
    Role(agent_of(sharing), lambda n: (PATIENCE_S[1 + n % 3],), lambda args, log: None, reads=True, withdraws=True),
    Role(agent_of(writer), _writes, _of_writer),
)
