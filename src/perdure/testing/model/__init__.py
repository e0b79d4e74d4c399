"""A model of who may write, small enough to be explored to the end.

The simulator runs the real code through many orders of events. This is the other half of the proof: a small model of
the protocol (`ownership.py`, `effects.py`), in which *every* order of events is tried, and in which the rules
(`rules.py`) are broken one at a time, to see that each is needed. `explorer.py` is a model checker for any such model.

    python -m perdure.testing.model                          # all worlds and all wrong variants, as a table
    python -m perdure.testing.model --show late-claim        # how a wrong variant goes wrong, step by step
"""

from __future__ import annotations

from perdure.testing.model.explorer import (
    ENDS,
    Event,
    Explored,
    Invariant,
    Label,
    Model,
    Refuted,
    TooManyStates,
    explore,
)
from perdure.testing.model.ownership import Ownership
from perdure.testing.model.rules import RIGHT, Rules, Setup
from perdure.testing.model.variants import LARGE_WORLDS, SPARE, VARIANTS, WORLDS, Variant, broken

__all__ = [
    "ENDS",
    "LARGE_WORLDS",
    "RIGHT",
    "SPARE",
    "VARIANTS",
    "WORLDS",
    "Event",
    "Explored",
    "Invariant",
    "Label",
    "Model",
    "Ownership",
    "Refuted",
    "Rules",
    "Setup",
    "TooManyStates",
    "Variant",
    "broken",
    "explore",
]
