"""What a scene tells its workers: one value, handed over in one environment variable."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

VARIABLE: Final = "PERDURE_DEMO"


@dataclass(frozen=True, slots=True)
class Brief:
    """How the research team works. The defaults are those of a worker that somebody starts by hand."""

    docs: str | None = None
    """A folder of documents; None for Python's own topics."""

    sidelog: str | None = None
    """Where step bodies report; None for nowhere."""

    billing: str | None = None
    """The billing service's URL; None for answers that cost nothing."""

    approver: str | None = None
    """Whose approval stands before a charge."""

    readers: int = 3
    """Queries of a plan: each has its reader."""

    passages: int = 2
    """Passages that one reader reads."""

    tokens: int = 300
    """A model's longest answer to one call."""

    think_ms: tuple[int, int] = (20, 60)
    """Without a model a step takes this long (by a hash of its name), so that there is something to interrupt."""

    def environ(self) -> dict[str, str]:
        """The variable that tells a process all this."""
        return {VARIABLE: json.dumps(asdict(self))}


def read_brief(environ: Mapping[str, str] = os.environ) -> Brief:
    """The brief of this process."""
    values = json.loads(environ.get(VARIABLE, "{}"))
    if "think_ms" in values:
        values["think_ms"] = tuple(values["think_ms"])
    return Brief(**values)
