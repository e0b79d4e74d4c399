"""A store that fails around the n-th of its writes: the public one, under the name that tests know."""

from __future__ import annotations

from perdure.testing.crashpoints import MOMENTS, Fault, FaultyStore, Moment

__all__ = ["MOMENTS", "Fault", "FaultyStore", "Moment"]
