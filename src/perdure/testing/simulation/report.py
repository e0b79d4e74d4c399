"""What came of a seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from perdure.testing.simulation.weather import Weather

StoreKind = Literal["memory", "sqlite"]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a seed."""

    seed: int
    store: StoreKind
    weather: Weather
    theme: str
    """What the world was about."""
    violations: tuple[str, ...]
    faults: Counter[str]
    events: Counter[str]
    """What else happened."""
    runs: int
    bodies: int
    repeated: int
    """Bodies that began again."""
    requests: int
    turns: int
    seconds: float
    """Of virtual time."""
    story: tuple[str, ...]
    digest: int
    """Of the story: the same seed gives the same."""

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        if self.ok:
            return f"seed {self.seed} on {self.store}: well"
        first = "\n  ".join(self.violations)
        return f"seed {self.seed} on {self.store}:\n  {first}\n{self.command}"

    @property
    def command(self) -> str:
        """The line that repeats it."""
        which = f"--seed {self.seed} --store {self.store} --about {self.theme}"
        return f"python -m perdure.testing.simulation {which} --story"
