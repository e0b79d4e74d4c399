"""What the director is told, what it shows meanwhile, and what it gives in the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.testing.chaos.case import Case, Violation

FAULTS_A_MINUTE: Final = 30
FAULTS_MIN: Final = 16
"""In a short time at least so many, so that each kind has its turn."""


@dataclass(frozen=True, slots=True)
class Script:
    """All that chaos is told."""

    store: str
    name: str
    folder: Path
    """Where the recorder's file and the logs are kept; not on the disk that is filled."""
    seconds: float
    seed: int
    workers: int = 4
    clients: int = 2
    lease_s: float = 3.0
    restart_command: str | None = None
    filler: Path | None = None
    force: bool = False
    """Whoever else uses the store."""

    @property
    def pause_s(self) -> float:
        """Between two faults."""
        return min(60 / FAULTS_A_MINUTE, self.seconds / FAULTS_MIN)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    part: str
    seconds: float
    faults: int
    told: int
    """Ends of runs that clients have been told."""
    workers: int
    clients: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """Both witnesses, and what is wrong between them."""

    case: Case
    violations: list[Violation]
    seconds: float
    """Of faults."""
    settled_s: float
    """Until everything was terminal, after the faults."""
    restarted: int
    """Workers that were started again because the store was away when they began."""
