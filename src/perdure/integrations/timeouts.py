"""Time-outs in words: those of drivers say nothing, and a delivery's last error is what a person reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def answering(who: str, limit_s: float) -> Iterator[None]:
    """Whoever is waited for, for so long; a time-out without a word says so."""
    try:
        yield
    except TimeoutError as error:
        if str(error):
            raise
        raise TimeoutError(f"{who} did not answer within {limit_s:g} s") from error
