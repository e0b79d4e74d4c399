"""Events: the runtime says what happened, handlers log, measure and trace.

An event is a name and fields. `subscribe` adds a handler, called on whatever thread the event happened on; one that
raises is logged and kept. The logging handler is always there and writes to the `perdure` logger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

Handler = Callable[[str, dict[str, Any]], None]

logger: Final = logging.getLogger("perdure")

LEVELS: Final[dict[str, int]] = {
    "worker.started": logging.INFO,
    "worker.stopped": logging.INFO,
    "worker.draining": logging.INFO,
    "worker.lost": logging.WARNING,
    "worker.taken_over": logging.WARNING,
    "loop.blocked": logging.WARNING,
    "loop.stalled": logging.ERROR,
    "loop.unblocked": logging.INFO,
    "service.failed": logging.WARNING,
    "service.recovered": logging.INFO,
    "run.held": logging.ERROR,
    "run.failed": logging.WARNING,
    "run.lost": logging.WARNING,
    "run.stuck": logging.WARNING,
    "run.waits": logging.WARNING,
    "delivery.failed": logging.WARNING,
    "delivery.dead": logging.ERROR,
    "source.rejected": logging.ERROR,
    "effect.unknown": logging.WARNING,
    "effect.failed": logging.WARNING,
    "effect.verify_failed": logging.WARNING,
    "effect.undo_failed": logging.WARNING,
    "effect.undo_given_up": logging.ERROR,
    "step.failed": logging.WARNING,
    "step.retried": logging.WARNING,
    "answer.unreadable": logging.WARNING,
}
"""What is worth a line at which level; every other event is DEBUG."""

_handlers: list[Handler] = []


def subscribe(handler: Handler) -> Callable[[], None]:
    """Add a handler; returns the function that takes it away."""
    _handlers.append(handler)
    return lambda: _handlers.remove(handler)


def emit(event: str, **fields: Any) -> None:
    """Say that something happened."""
    level = LEVELS.get(event, logging.DEBUG)
    if logger.isEnabledFor(level):
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        logger.log(level, "%s %s", event, text)
    for handler in tuple(_handlers):
        try:
            handler(event, fields)
        except Exception:
            logger.exception("a telemetry handler failed on %s", event)
