"""What clients start in a world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from perdure.testing.simulation import playbook


@dataclass(frozen=True, slots=True)
class Order:
    """A run that a client is to start."""

    number: int
    agent: str
    args: tuple[Any, ...]
    key: str
    thread_id: str | None
    if_busy: str
    delay: float
    priority: int
    at_s: float
    waits: bool
    """Whether the client waits for its result."""


def draw_orders(chance: random.Random) -> list[Order]:
    """What clients start in this world."""
    orders: list[Order] = []
    roles = list(playbook.ROLES.values())
    threads = [f"thread {n}" for n in range(chance.choice((1, 2, 5)))]
    for number in range(chance.choice((1, 3, 6, 10, 16))):
        role = chance.choice(roles)
        shared = chance.random() < 0.5
        orders.append(
            Order(
                number=number,
                agent=role.agent.name,
                args=role.arguments(number),
                key=f"key {number}",
                thread_id=f"{role.agent.name} on {chance.choice(threads)}" if shared else None,
                if_busy="enqueue",
                delay=chance.choice((0.0, 0.0, 0.0, 1.5)),
                priority=chance.choice((0, 0, 5)),
                at_s=chance.uniform(0.0, 5.0),
                waits=chance.random() < 0.7,
            )
        )
    # Two clients may start the same thing at once: one run.
    return orders + [chance.choice(orders) for _ in range(chance.choice((0, 0, 2)))]
