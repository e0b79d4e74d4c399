"""What people and other processes ask of a store besides starting and working: answers, messages, cancellations,
forks, and looking at them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.core.records import Claimed, InterruptState, RunState
from perdure.core.requests import ForkRun, InterruptFilter, NewAnswer, NewMessage, StartRun
from perdure.testing.differential.operations import Call, Operation, blob
from perdure.testing.differential.pauses import Pauses
from perdure.testing.differential.sight import Sight

UNKNOWN = 10**15


class Outsiders:
    """Draws operations."""

    def __init__(self, source: random.Random, sight: Sight, pauses: Pauses, *, by: Callable[[], str]) -> None:
        self.random = source
        self.sight = sight
        self.pauses = pauses
        self._by = by
        self._sent: list[NewMessage] = []

    def time_passes(self) -> None:
        """What was received long ago may be known by its id or not: it is not sent again."""
        self._sent.clear()

    def answer(self) -> Sequence[Operation]:
        open_ones = self.sight.questions(InterruptState.OPEN)
        pool = open_ones if open_ones and self.random.random() < 0.7 else self.sight.questions()
        if not pool and self.random.random() < 0.9:
            return []
        choose = self.random.choice
        number = choose(pool) if pool else UNKNOWN
        given = NewAnswer(
            number, choose([b"yes", b"yes", b"no"]), choose([None, "ann"]), choose([(), (blob(b"shared"),)])
        )
        return [Call("answer", (given,), by=self._by())]

    def send(self) -> Sequence[Operation]:
        new = [self.pauses.message() for _ in range(self.random.randint(1, 3))]
        again = self.random.sample(self._sent, min(len(self._sent), self.random.choice([0, 0, 0, 1])))
        self._sent += new
        messages = [*again, *new, *self.random.choices(new, k=self.random.choice([0, 0, 0, 1]))]
        return [Call("send", (tuple(messages),), by=self._by())]

    def revive(self) -> Sequence[Operation]:
        dead = self.sight.dead_letters()
        if not dead and self.random.random() < 0.98:
            return []
        return [Call("revive", (self.random.choice(dead) if dead else UNKNOWN,), by=self._by())]

    def cancel(self) -> Sequence[Operation]:
        unfinished = [state for state in RunState if state not in (RunState.COMPLETED, RunState.FAILED)]
        pool = self.sight.runs(*unfinished) if self.random.random() < 0.9 else self.sight.runs()
        run = self.random.choice(pool) if pool else UNKNOWN
        return [Call("cancel", (run, self.random.choice(["enough", "too late"]), b"cancelled"), by=self._by())]

    def fork(self, start: StartRun, claims: Sequence[tuple[int, Claimed]]) -> Sequence[Operation]:
        """Go on from a checkpoint elsewhere, under records that somebody has seen."""
        choose = self.random.choice
        seen = choose(claims)[1].records if claims and self.random.random() < 0.7 else ()
        super_step = choose([1, 2, 2, 3])
        records = tuple(msgspec.structs.replace(row, run=start.id, super_step=super_step) for row in seen)
        forked = ForkRun(start, super_step, choose([None, b"forked", b"forked"]), records)
        return [Call("fork", (forked,), by=self._by())]

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, run: int, worker: int, limit: int) -> Operation:
        """Look at what is waited for."""
        choose = self.random.choice
        thread = choose([number for number, _ in self.sight.threads()] or [UNKNOWN])
        questions = self.sight.questions() or [UNKNOWN]
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("waits", ((run, choose(self.sight.runs() or [UNKNOWN]), UNKNOWN),), {}),
            ("cancellations", (worker,), {}),
            ("interrupts", (self._filter(questions, limit),), {}),
            ("get_interrupts", ((choose(questions), choose(questions)),), {}),
            ("mailbox", (thread,), {"limit": limit, "after": choose([0, 0, 1, 2])}),
            ("dead_letters", (choose([None, thread]),), {"limit": limit, "after": choose([0, 0, *questions])}),
        ]
        verb, args, named = choose(calls)
        return Call(verb, args, named, by=self._by())

    def _filter(self, questions: Sequence[int], limit: int) -> InterruptFilter:
        choose = self.random.choice
        return InterruptFilter(
            state=choose([None, InterruptState.OPEN, *InterruptState]),
            agent=choose([None, None, "ann"]),
            thread_id=choose([None, None, "ann-1", "bob-1"]),
            run=choose([None, None, *self.sight.runs()[-1:]]),
            assignee=choose([None, None, "ann"]),
            tenant=choose([None, None, "acme"]),
            limit=limit,
            after=choose([None, None, choose(questions)]),
        )
