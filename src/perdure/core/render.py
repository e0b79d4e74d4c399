"""Recorded things in words, for people."""

from __future__ import annotations

import reprlib
from typing import Any

from perdure.core.records import Checkpoint

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120


def divergence(record: Checkpoint, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Both sides of a divergence, and what to do."""
    given = ", ".join(
        [_short.repr(value) for value in args] + [f"{name}={_short.repr(value)}" for name, value in kwargs.items()]
    )
    digest = f"{record.digest & (1 << 64) - 1:016x}"
    return (
        f"step {record.key!r} in super-step {record.super_step} was recorded (try {record.attempt}, under fence "
        f"{record.fence}) with arguments of digest {digest}; now the code calls it with other ones: ({given}). "
        "Either the code changed under the run, or the order of its branches is not fixed: deploy the code that "
        "recorded it, or give the step a key of its own with .options(key=…), then release the run"
    )
