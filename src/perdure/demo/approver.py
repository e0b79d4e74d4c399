"""Who stands before a charge: the demo itself, in a person's place, or the person at the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import click

from perdure.app import App
from perdure.client.inbox import InterruptInfo
from perdure.core.limits import LIST_ROWS_MAX
from perdure.demo.reconciliation import money
from perdure.demo.screen import PlainScreen
from perdure.errors import AlreadyAnswered

Decide = Callable[[InterruptInfo], Awaitable[dict[str, Any]]]
"""The answer to a question."""

READ_BYTES: Final = 4096


class Approver:
    """Answers what is open in the inbox of one name."""

    def __init__(self, app: App, name: str, decide: Decide) -> None:
        self.app = app
        self.name = name
        self.decide = decide

    async def answer_all(self) -> int:
        """One round; returns how many were answered."""
        questions = await self.app.interrupts(assignee=self.name, limit=LIST_ROWS_MAX)
        for question in questions:
            answer = await self.decide(question)
            with suppress(AlreadyAnswered):  # with `perdure resume`, by somebody who was first
                await self.app.resume(question.id, answer, by=self.name, digest=question.digest)
        return len(questions)


async def always(question: InterruptInfo) -> dict[str, Any]:
    """Yes."""
    return {"approve": True, "note": "by the demo, for a person"}


class Person:
    """Whoever is at the terminal, until he says yes to all."""

    def __init__(self, screen: PlainScreen) -> None:
        self.screen = screen
        self.yes_to_all = False
        self.typed = b""

    async def __call__(self, question: InterruptInfo) -> dict[str, Any]:
        """Ask until there is an answer."""
        asked, word = question.payload, "a" if self.yes_to_all else ""
        with self.screen.aside():
            while word not in ("y", "n", "a"):
                text = f"{question.id}: charge {money(asked['cents'])} for {asked['for']!r}?"
                click.echo(f"{text} (y, n, a: yes to all) ", nl=False)
                word = await self._line()
        self.yes_to_all = word == "a"
        return {"approve": word != "n"}

    async def _line(self) -> str:
        """What is typed next; the event loop goes on meanwhile, and Ctrl-C is heard."""
        while b"\n" not in self.typed:
            more = await read_input()
            if not more:
                raise click.Abort
            self.typed += more
        line, _, self.typed = self.typed.partition(b"\n")
        return line.decode(errors="replace").strip().lower()


async def read_input() -> bytes:
    """The next bytes of standard input; empty at its end."""
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except PermissionError:  # a file, which nobody has to wait for
        return os.read(file, READ_BYTES)
    try:
        await ready.wait()
        return os.read(file, READ_BYTES)
    finally:
        loop.remove_reader(file)


async def approvals(app: App, name: str) -> list[InterruptInfo]:
    """All that were answered in that name, oldest first."""
    found: list[InterruptInfo] = []
    while True:
        after = found[-1].id if found else None
        page = await app.interrupts(state="answered", assignee=name, limit=LIST_ROWS_MAX, after=after)
        found += page
        if len(page) < LIST_ROWS_MAX:
            return found
