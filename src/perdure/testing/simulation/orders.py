"""What clients start in a world."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final

from perdure.testing.simulation import playbook

IF_BUSY: Final = ("enqueue",) * 4 + ("join", "reject")
QUEUES: Final = ("default", "default", "side")


@dataclass(frozen=True, slots=True)
class Order:
    """A run that a client is to start."""

    number: int
    agent: str
    args: tuple[Any, ...]
    key: str | None
    """Without one, a client that was killed starts another run."""
    thread_id: str | None
    if_busy: str
    queue: str
    delay: float
    priority: int
    at_s: float
    waits: bool
    """Whether the client waits for its result."""

    @property
    def name(self) -> str:
        return f"order {self.number}"


def draw_orders(chance: random.Random, poison: float) -> list[Order]:
    """What clients start in this world; `poison` is the chance that some of it kills its workers."""
    roles = [role for role in playbook.ROLES.values() if role is not playbook.POISON]
    if chance.random() < 0.25:  # a crowd: few threads, with many runs each
        roles = chance.sample(roles, 2)
    threads = [f"thread {n}" for n in range(chance.choice((1, 2, 5)))]
    orders = [_order(chance, n, chance.choice(roles), threads) for n in range(chance.choice((1, 3, 6, 10, 16)))]
    if chance.random() < poison:
        orders += [_order(chance, len(orders) + n, playbook.POISON, threads) for n in range(chance.choice((1, 1, 3)))]
    # Two clients may start the same thing at once: with a key, it is one run.
    orders += [chance.choice(orders) for _ in range(chance.choice((0, 0, 2)))]
    if chance.random() < 0.2:
        orders.append(_impostor(chance, chance.choice(orders), len(orders)))
    return orders


def _order(chance: random.Random, number: int, role: playbook.Role, threads: list[str]) -> Order:
    shared = chance.random() < 0.5
    return Order(
        number=number,
        agent=role.agent.name,
        args=role.arguments(number),
        key=f"key {number}" if chance.random() < 0.8 else None,
        thread_id=f"{role.agent.name} on {chance.choice(threads)}" if shared else None,
        if_busy=chance.choice(IF_BUSY),
        queue=chance.choice(QUEUES),
        delay=chance.choice((0.0, 0.0, 0.0, 1.5)),
        priority=chance.choice((0, 0, 5)),
        at_s=chance.uniform(0.0, 5.0),
        waits=chance.random() < 0.7,
    )


def _impostor(chance: random.Random, order: Order, number: int) -> Order:
    """Another run under the same key: whichever comes second is told so."""
    args = playbook.ROLES[order.agent].arguments(number)
    return replace(order, number=number, args=args, at_s=order.at_s + chance.uniform(-0.5, 0.5))
