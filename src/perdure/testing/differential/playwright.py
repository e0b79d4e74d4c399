"""Programs on an app, from seeds.

Nothing is asked of a store to write one: a start is named by its place, so a program means something whatever became of
its starts. Every agent is drawn often enough to meet every other on a thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from perdure.core.budgets import Budget
from perdure.core.records import RunState
from perdure.testing.differential.acting import (
    Act,
    Allow,
    Ask,
    AskThread,
    Begin,
    Fork,
    ListQuestions,
    ListRuns,
    Look,
    Mail,
    Redeliver,
    Reply,
    Send,
    Work,
)

NUMBERS: Final = ("line", "fan", "count", "count", "count", "large", "napping", "reading", "reading")
"""Agents that take a number."""

NAMES: Final = ("shaky", "shaky", "careful", "patient", "parenting")
"""Agents that take a name, and how often they fail."""

TRADING: Final = ("handing", "spending", "spending")
"""Agents that take a name, and how much they do."""

NAMED: Final = ("fickle", "asking", "asking", "asking", "expiring", "limited")
"""Agents that take a name."""

ANSWERS: Final = (True, True, False, "yes", 7)
SMALL: Final = (Budget(tokens=10), Budget(steps=2))
OF_BUDGETS: Final = (
    {"raise_to": {"tokens": 40}},
    {"raise_to": {"tokens": 12}},
    {"raise_to": {"steps": 9}},
    {"stop": True},
)
MESSAGES: Final = (1, 2, "a letter", {"a": "form"})

THREADS: Final = ("t1", "t2", "t3", None)


async def write(seed: int, length: int) -> tuple[Act, ...]:
    """The program of this seed."""
    playwright = Playwright(seed)
    return (Work(True), *(playwright.go_on() for _ in range(length)), Look(), Work(True), Look())


class Playwright:
    """Writes one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"an app's program {seed}")
        self._starts = 0
        self._threads: list[str] = []
        """Those on which something was started, perhaps."""
        self._budgeted: list[int] = []
        """Starts with a budget."""
        self._handing = False
        """Something was handed over, perhaps."""
        self._draws: dict[Callable[[], Act], int] = {
            self.begin: 10, self.work: 3, self.send: 5, self.ask: 4, self.ask_thread: 3, self.list_runs: 2,
            self.reply: 8, self.mail: 4, self.fork: 2, self.list_questions: 1,
            self.allow: 3, self.redeliver: 3,
        }  # fmt: skip

    def go_on(self) -> Act:
        """One more thing to do."""
        return self.random.choices(list(self._draws), list(self._draws.values()))[0]()

    def begin(self) -> Act:
        agent, args = self._agent()
        options: dict[str, Any] = {
            "thread_id": self._thread(agent),
            "key": self.random.choice([None, None, None, "x", "y"]),
            "if_busy": self.random.choice([None, "enqueue", "enqueue", "join", "reject", "interrupt", "rollback"]),
            "deadline": self.random.choice([*[None] * 9, 3600]),
            "priority": self.random.choice([0, 0, 1]),
            "tenant": self.random.choice([None, "acme"]),
            "tags": self.random.sample(["red", "green"], self.random.randint(0, 2)),
            "budget": self.random.choice([None, *SMALL, *SMALL]) if agent in TRADING else None,
        }
        self._budgeted += [self._starts] if options["budget"] else []
        self._handing = self._handing or agent == "handing"
        self._starts += 1
        self._threads += [options["thread_id"]] if options["thread_id"] else []
        return Begin(agent, args, {name: value for name, value in options.items() if value})

    def _agent(self) -> tuple[str, tuple[Any, ...]]:
        draw = self.random.random()
        if draw < 0.02:
            return "nobody", ()
        name = f"n{self._starts}"
        if draw < 0.4:
            return self.random.choice(NUMBERS), (self.random.randint(1, 2),)
        if draw < 0.57:
            return self.random.choice(NAMED), (name,)
        if draw < 0.75:
            return self.random.choice(TRADING), (name, self.random.randint(2, 5))
        if draw < 0.8:
            return "writing", (self._somewhere(), self.random.randint(1, 3))
        return self.random.choice(NAMES), (name, self.random.randint(0, 4))

    def _thread(self, agent: str) -> str | None:
        """A thread that this agent's runs share, now and then another agent's, or one of its own."""
        if self.random.random() < 0.3:
            return None
        owner = agent if self.random.random() < 0.9 else "line"
        return f"{owner}-{self.random.randint(1, 2)}"

    def work(self) -> Act:
        return Work(self.random.random() < 0.6)

    def send(self) -> Act:
        return Send(self.random.choice(["retry", "retry", "release", "cancel", "cancel"]), self._start())

    def reply(self) -> Act:
        by = self.random.choice([None, "ann"])
        if self._budgeted and self.random.random() < 0.4:
            return Reply(self._somewhere("spending"), self.random.choice(OF_BUDGETS), by)
        question = self.random.choice([*range(6), self._somewhere("asking")])
        return Reply(question, self.random.choice([*ANSWERS, *OF_BUDGETS]), by)

    def mail(self) -> Act:
        key = self.random.choice([None, None, "k1", "k2"])
        return Mail(self._somewhere(), self.random.choice(MESSAGES), key)

    def allow(self) -> Act:
        """More for one run, or more than enough for many: who is the first to find too little is chance."""
        if self.random.random() < 0.6:
            start = self.random.choice(self._budgeted[-2:] or [self._start()])
            return Allow(start, self.random.choice([Budget(tokens=30), Budget(steps=1), Budget(usd=100)]))
        name = self.random.choice(["agent:spending", "agent:fan", "tenant:acme", "nobody"])
        return Allow(name, Budget(tokens=1_000_000, steps=1_000_000))

    def redeliver(self) -> Act:
        if not self._handing and self.random.random() < 0.9:
            return self.begin()
        return Redeliver(self.random.randint(0, 3))

    def fork(self) -> Act:
        self._starts += 1
        key = self.random.choice([None, None, None, "may", "double"])
        return Fork(self._somewhere("count"), self.random.choice([None, 1, 1, 2]), key)

    def list_questions(self) -> Act:
        filters: dict[str, Any] = {
            "state": self.random.choice([None, "open", "answered", "withdrawn"]),
            "agent": self.random.choice([None, "asking"]),
            "assignee": self.random.choice([None, "ann"]),
            "limit": 100,
        }
        return ListQuestions(filters)

    def _somewhere(self, owner: str = "reading") -> str:
        """One of an agent's threads that is there, if one is; now and then another one."""
        there = [name for name in self._threads if name.startswith(owner)] or self._threads
        if there and self.random.random() < 0.85:
            return self.random.choice(there)
        return f"{owner}-{self.random.randint(1, 2)}"

    def ask(self) -> Act:
        return Ask(self.random.choice(["info", "result", "history"]), self._start())

    def ask_thread(self) -> Act:
        owner = self.random.choice([*NUMBERS, *NAMES, *NAMED])
        what = self.random.choice(["info", "state", "runs", "checkpoints", "mailbox"])
        return AskThread(what, self._somewhere(owner))

    def list_runs(self) -> Act:
        filters: dict[str, Any] = {
            "state": self.random.choice([None, None, *(state.value for state in RunState)]),
            "agent": self.random.choice([None, None, "count", "shaky"]),
            "tenant": self.random.choice([None, "acme"]),
            "tags": self.random.choice([(), ("red",)]),
            "limit": self.random.choice([1, 2, 100]),
        }
        return ListRuns(filters, self.random.choice([None, None, self._start()]))

    def _start(self) -> int:
        return self.random.randint(max(0, self._starts - 4), max(0, self._starts - 1))
