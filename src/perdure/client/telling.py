"""What a program that blocks on a run says meanwhile: once for each thing that the run waits for, and how to end that.

`app.run` executes agents itself, so nobody else looks at them; an agent that asks would wait in silence for an answer
that nobody knows of. The questions are its own, those of the runs it has started, and of those that it waits for.
"""

from __future__ import annotations

import shlex
from typing import Final

from perdure.client.connection import Client
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Interrupt, InterruptState, Run, RunState, WaitKind, interrupt_id, run_id
from perdure.core.requests import RunFilter
from perdure.runtime.awaited import awaited
from perdure.telemetry import emit

LOOK_S: Final = 1.0
"""How often it looks."""

SOON_US: Final = 5_000_000
"""What goes on by itself so soon is not worth a line either."""


class Teller:
    """Tells of one run, as a service: `tick` looks, and says what is new."""

    def __init__(self, client: Client, run: int) -> None:
        self._client = client
        self._run = run
        self._said: set[str] = set()
        self._seen: set[str] = set()
        """At the look before: what is over by the next one is not worth a line."""

    async def tick(self) -> float:
        """Look, and say what the run waits for, where it did at the look before and that has not been said."""
        seen: set[str] = set()
        for run in await self._client.store.get_runs([self._run]):
            if run.state is not RunState.WAITING or run.ready_at <= await self._client.store.now_us() + SOON_US:
                continue
            questions = await self._questions(run)
            for question in questions:
                name = interrupt_id(question.id)
                seen |= self._say(
                    question.run, question.agent, f"an answer to {name} ({question.name})",
                    self._commands(
                        (f"interrupts show {name}", "says what is asked"), (f"resume {name} ANSWER", "answers it")
                    ),
                )  # fmt: skip
            what = None if questions else (await awaited(self._client.store, [run])).get(run.id)
            if what is not None:
                more = self._commands((f"runs show {run_id(run.id)}", "says more"))
                seen |= self._say(run.id, run.agent, what, more)
        self._seen = seen
        return LOOK_S

    def _say(self, run: int, agent: str, what: str, remedy: str) -> set[str]:
        if what in self._seen and what not in self._said:
            self._said.add(what)
            emit("run.waits", run=run_id(run), agent=agent, waits_for=what, remedy=remedy)
        return {what}

    def _commands(self, *commands: tuple[str, str]) -> str:
        url = self._client.store.url
        if url.startswith("memory:"):
            return "memory:// lives in this process alone: only code in it can answer or send something"
        return ", ".join(f"`perdure {words} --store {shlex.quote(url)}` {does}" for words, does in commands)

    async def _questions(self, run: Run) -> list[Interrupt]:
        """The open questions of this run, of those that it has started, and of those for which they wait in turn: as
        many as a person may want to read of."""
        store = self._client.store
        children = RunFilter(parent=run.id, state=RunState.WAITING, limit=LIST_ROWS_MAX)
        asked: set[int] = set()
        seen: set[int] = set()
        left = {run.id, *(child.id for child in await store.list_runs(children))}
        while left and len(seen) < LIST_ROWS_MAX and len(asked) < LIST_ROWS_MAX:
            level = sorted(left)[: LIST_ROWS_MAX - len(seen)]
            seen |= left
            targets = [(wait.kind, wait.target) for wait in await store.waits(level) if wait.target is not None]
            asked |= {target for kind, target in targets if kind is WaitKind.ANSWER}
            left = {target for kind, target in targets if kind is WaitKind.RUN} - seen
        rows = await store.get_interrupts(sorted(asked)[:LIST_ROWS_MAX]) if asked else []
        return [row for row in rows if row.state is InterruptState.OPEN]
