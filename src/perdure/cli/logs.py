"""Where the `perdure` logger goes while a command executes user code: stderr, at the level of `$PERDURE_LOG`."""

from __future__ import annotations

import logging
import os

from perdure.errors import UsageError

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr() -> None:
    """Set the logger up, unless the user's own code has done it already."""
    level = os.environ.get("PERDURE_LOG") or "warning"
    if level.lower() not in LEVELS:
        raise UsageError(f"$PERDURE_LOG is {level!r}; it must be one of: {', '.join(LEVELS)}")
    logger = logging.getLogger("perdure")
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
