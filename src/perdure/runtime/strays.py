"""Strays: tasks and futures of a super-step that its code may not get to any more.

What they end with concerns nobody: the super-step has its ending. Unseen it would be reported by the event loop as an
exception that was never retrieved.
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.runtime.known import fed_by

_stuck: set[asyncio.Future[Any]] = set()
"""Tasks that are left to themselves. The loop knows them only weakly; collected, they would end in the middle."""


def see_all(tasks: list[asyncio.Future[Any]]) -> None:
    """Have seen what gatherings and the like of these tasks end with."""
    for future in fed_by(tasks):
        if isinstance(future, asyncio.Future):
            future.add_done_callback(see)


def see(future: asyncio.Future[Any]) -> None:
    """Look at what a future has ended with."""
    if not future.cancelled():
        future.exception()


def disown(task: asyncio.Future[Any]) -> None:
    """Leave a task that does not end to itself: the end of the process does not wait for it, as `asyncio.run` would."""
    if isinstance(task, asyncio.Task):
        asyncio._unregister_task(task)
        _stuck.add(task)
        task.add_done_callback(_stuck.discard)
