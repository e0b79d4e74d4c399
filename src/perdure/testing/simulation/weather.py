"""Weather: which faults a world has, and how often.

Each seed draws its own: some worlds have every kind of fault a little, some have one kind a lot, and some are calm but
for one (swarm testing: Groce and others, 2012; a run with everything at once hides what only shows without the rest).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True)
class Weather:
    """Chances: of a message between a process and the database, of a write, of a body, or how often in a minute."""

    # Messages: per call of a store verb.
    latency_s: float = 0.001
    """The mean one-way delay of an ordinary message."""
    slow: float = 0.0
    """The message takes seconds."""
    refused: float = 0.0
    """The store says at once that it is not there; nothing was done."""
    request_lost: float = 0.0
    """The request never comes; the caller learns after a while that nobody knows."""
    reply_lost: float = 0.0
    """It was done, and the caller learns that nobody knows."""
    request_late: float = 0.0
    """The caller has given up, and then the request comes and is done."""
    parking_late: float = 0.0
    """The same, of a write that parks a run."""
    hint_lost: float = 0.0
    hint_late: float = 0.0
    word_unheard: float = 0.0
    """A person's word (an answer, a message, a cancellation, a fork) was done, and he learns that nobody knows."""

    # Deaths: per write, around it.
    dies_before: float = 0.0
    dies_with_request_on_its_way: float = 0.0
    dies_before_reply: float = 0.0
    dies_after_reply: float = 0.0
    dies_parking: float = 0.0
    """The same around a write that parks a run."""

    # Bodies of steps.
    body_slow: float = 0.0
    body_fails: float = 0.0
    body_kills: float = 0.0
    undoing_kills: float = 0.0
    """The body is one that undoes what a cancelled run has done, and the worker dies in it."""
    poison: float = 0.0
    """The chance that there are runs which kill every worker that executes them, until a person has looked."""

    # Processes and clocks: how often in a minute.
    kills: float = 0.0
    pauses: float = 0.0
    blocks: float = 0.0
    drains: float = 0.0
    outages: float = 0.0
    wall_jumps: float = 0.0
    store_jumps: float = 0.0
    due_jumps: float = 0.0
    """The store's clock jumps over the next time that a run waits for."""
    silences: float = 0.0
    """No hint comes through, to anybody, for a long while."""
    client_kills: float = 0.0
    sessions_hidden: float = 0.0
    """The chance that a store cannot show deaths, so that the lease alone decides."""


CALM: Final = Weather()

STORM: Final = Weather(
    latency_s=0.003, slow=0.02, refused=0.02, request_lost=0.01, reply_lost=0.02, request_late=0.02, hint_lost=0.3,
    hint_late=0.2, dies_before=0.008, dies_with_request_on_its_way=0.008, dies_before_reply=0.008,
    dies_after_reply=0.008, body_slow=0.05, body_fails=0.1, body_kills=0.01, kills=6, pauses=6, blocks=3, drains=4,
    outages=3, wall_jumps=2, store_jumps=1, client_kills=2, sessions_hidden=0.4, poison=0.1, word_unheard=0.25,
    parking_late=0.1, dies_parking=0.05, undoing_kills=0.15, due_jumps=8, silences=2,
)  # fmt: skip
"""Every fault, each about as often as a world can bear and still get something done."""

FAULTS: Final = tuple(field.name for field in fields(Weather) if field.name != "latency_s")


HARMLESS: Final = frozenset(
    {"hint_lost", "hint_late", "word_unheard", "body_slow", "body_fails", "wall_jumps", "silences", "client_kills",
     "sessions_hidden", "poison"}
)  # fmt: skip


def draw(chance: random.Random) -> Weather:
    """The weather of a seed."""
    kind = chance.random()
    latency_s = chance.choice((0.0, 0.001, 0.003, 0.02))
    if kind < 0.05:  # nothing kills but poison
        return Weather(latency_s=latency_s, poison=0.5)
    if kind < 0.2:  # one or two kinds of fault, a lot
        some = chance.sample(FAULTS, chance.choice((1, 2)))
        return Weather(latency_s=latency_s, **{name: min(0.5, 3 * getattr(STORM, name)) if _is_share(name) else
                                               2 * getattr(STORM, name) for name in some})  # fmt: skip
    some = [name for name in FAULTS if chance.random() < 0.6]
    strength = chance.choice((0.3, 1.0, 1.0, 2.0))
    return Weather(latency_s=latency_s, **{name: strength * getattr(STORM, name) for name in some})


def is_harmless(weather: Weather) -> bool:
    """Whether nothing in it costs a worker its lease or its life, poison aside."""
    return not any(getattr(weather, name) for name in FAULTS if name not in HARMLESS)


def _is_share(name: str) -> bool:
    return float(getattr(STORM, name)) < 1


__all__ = ["CALM", "FAULTS", "STORM", "Weather", "draw", "is_harmless"]
