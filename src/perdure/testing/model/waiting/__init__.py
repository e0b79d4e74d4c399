"""A model of waiting without a worker, explored to the end: no wake-up is lost, in any order of events.

`plans.py` says who locks what before it looks at what, on Postgres; `commits.py` what is looked at and written;
`execution.py` what a worker does, `outside.py` what everybody else does. `rules.py` has each rule in a sentence,
`invariants.py` what must hold, and `variants.py` the worlds, and what goes wrong where a rule is broken.
"""

from __future__ import annotations

from perdure.testing.model.waiting.model import Waiting
from perdure.testing.model.waiting.rules import RIGHT, Rules, Setup
from perdure.testing.model.waiting.variants import LARGE_WORLDS, VARIANTS, WORLDS, Variant, broken

__all__ = [
    "LARGE_WORLDS",
    "RIGHT",
    "VARIANTS",
    "WORLDS",
    "Rules",
    "Setup",
    "Variant",
    "Waiting",
    "broken",
]
