"""What clients start in a world."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from perdure import Budget
from perdure.testing.simulation import playbook
from perdure.testing.simulation.roles import Role

IF_BUSY: Final = ("enqueue",) * 4 + ("join", "reject")
IF_ASKING: Final = (
    ("enqueue", "enqueue", "join", "reject", None, None, "interrupt", "rollback"),
    ("enqueue", None, "interrupt", "rollback", "rollback"),
)
"""The same where agents wait, in two kinds of world; None is what says nothing."""
QUEUES: Final = ("default", "default", "side")
OFTEN: Final = frozenset({"booking", "hurried", "diary", "frugal"})
"""Agents that much may happen to."""
EFFECTS_EVERY: Final = 5
OUTBOX_EVERY: Final = (10, 1)
BUDGETS_EVERY: Final = (10, 6)
DEADLINES_S: Final = (None,) * 6 + (0.5, 2.0, 6.0)
TENANTS: Final = ("acme", "zoo")
BUDGETS: Final = (
    None,
    Budget(usd=1.25),
    Budget(usd=0.45, steps=9),
    Budget(tokens=500),
    Budget(steps=3),
    Budget(usd=2, tokens=900, steps=12, seconds=20),
)


class Theme(StrEnum):
    """What a world is about."""

    WORK = "work"
    WAITING = "waiting"
    BOTH = "both"
    EFFECTS = "effects"
    OUTBOX = "outbox"
    BUDGETS = "budgets"


@dataclass(frozen=True, slots=True)
class Order:
    """A run that a client is to start."""

    number: int
    agent: str
    args: tuple[Any, ...]
    key: str | None
    """Without one, a client that was killed starts another run."""
    thread_id: str | None
    if_busy: str | None
    queue: str
    delay: float
    priority: int
    at_s: float
    waits: bool
    """Whether the client waits for its result."""
    deadline: float | None = None
    tenant: str | None = None
    budget: Budget | None = None

    @property
    def name(self) -> str:
        return f"order {self.number}"


def draw_theme(chance: random.Random, seed: int) -> Theme:
    """What this world is about: every fifth seed's, effects; every tenth's, the outbox, and every tenth's, budgets."""
    drawn = chance.choices((Theme.WORK, Theme.WAITING, Theme.BOTH), (4, 4, 2))[0]
    for theme, (every, nth) in ((Theme.OUTBOX, OUTBOX_EVERY), (Theme.BUDGETS, BUDGETS_EVERY)):
        if seed % every == nth:
            return theme
    return drawn if seed % EFFECTS_EVERY else Theme.EFFECTS


def draw_orders(chance: random.Random, poison: float, theme: Theme) -> list[Order]:
    """What clients start in this world; `poison` is the chance that some of it kills its workers."""
    roles = _roles(theme)
    if theme is Theme.WAITING and chance.random() < 0.5:  # those who have to do with each other
        roles = list(chance.choice(playbook.CIRCLES))
    elif chance.random() < 0.25:  # a crowd: few threads, with many runs each
        roles = chance.sample(roles, 2)
    threads = [f"thread {n}" for n in range(chance.choice((1, 2, 5)))]
    if_busy = IF_BUSY if theme is Theme.WORK else chance.choice(IF_ASKING)
    numbers = range(chance.choice((1, 3, 6, 10, 16)))
    orders = [_order(chance, n, chance.choice(roles), threads, if_busy) for n in numbers]
    if chance.random() < poison:
        poisons = [playbook.POISON] if theme is Theme.WORK else [playbook.POISON, playbook.ROLES["held"]]
        role = chance.choice(poisons)
        count = chance.choice((1, 1, 3))
        orders += [_order(chance, len(orders) + n, role, threads, IF_BUSY) for n in range(count)]
    # Two clients may start the same thing at once: with a key, it is one run.
    orders += [chance.choice(orders) for _ in range(chance.choice((0, 0, 2)))]
    if chance.random() < 0.2:
        orders.append(_impostor(chance, chance.choice(orders), len(orders)))
    return [_limited(chance, order) for order in orders] if theme is Theme.BUDGETS else orders


def _limited(chance: random.Random, order: Order) -> Order:
    """Of somebody, and with so much to use."""
    return replace(order, tenant=chance.choice((None, *TENANTS)), budget=chance.choice(BUDGETS))


def _roles(theme: Theme) -> list[Role]:
    """The agents of a world, without those that kill."""
    some = {
        Theme.WORK: playbook.WORKING,
        Theme.WAITING: playbook.WAITING,
        Theme.BOTH: playbook.WORKING | playbook.WAITING,
        Theme.EFFECTS: playbook.ACTING,
        Theme.OUTBOX: playbook.DELIVERING,
        Theme.BUDGETS: playbook.SPENDING,
    }[theme]
    roles = [role for role in some.values() if role is not playbook.POISON and role.agent.name != "held"]
    return roles + [role for role in roles if role.agent.name in OFTEN]


def _order(
    chance: random.Random, number: int, role: Role, threads: list[str], if_busy: tuple[str | None, ...]
) -> Order:
    works = if_busy is IF_BUSY
    shared = role.reads or chance.random() < (0.9 if role.tallies and not works else 0.5)
    return Order(
        number=number,
        agent=role.agent.name,
        args=role.arguments(number),
        key=f"key {number}" if chance.random() < 0.8 else None,
        thread_id=f"{role.agent.name} on {chance.choice(threads)}" if shared else None,
        if_busy=chance.choice(if_busy),
        queue=chance.choice(QUEUES),
        delay=chance.choice((0.0, 0.0, 0.0, 1.5)),
        priority=chance.choice((0, 0, 5)),
        at_s=chance.uniform(0.0, 5.0),
        waits=chance.random() < 0.7,
        deadline=None if works or role.never_fails or role.cleans_up else chance.choice(DEADLINES_S),
    )


def _impostor(chance: random.Random, order: Order, number: int) -> Order:
    """Another run under the same key: whichever comes second is told so."""
    args = playbook.ROLES[order.agent].arguments(number)
    return replace(order, number=number, args=args, at_s=order.at_s + chance.uniform(-0.5, 0.5))
