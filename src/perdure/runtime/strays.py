"""Strays: tasks and futures of a super-step that its code may not get to any more, and bodies that are not to be any.

What they end with concerns nobody: the super-step has its ending. Unseen it would be reported by the event loop as an
exception that was never retrieved.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from perdure.runtime.known import fed_by
from perdure.runtime.stacks import stack

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

_stuck: set[asyncio.Future[Any]] = set()
"""Tasks that are left to themselves. The loop knows them only weakly; collected, they would end in the middle."""


def see_all(tasks: list[asyncio.Future[Any]]) -> None:
    """Have seen what gatherings and the like of these tasks end with."""
    for thing, _ in fed_by(tasks):
        if isinstance(thing, asyncio.Future):
            thing.add_done_callback(see)


def see(future: asyncio.Future[Any]) -> None:
    """Look at what a future has ended with."""
    if not future.cancelled():
        future.exception()


async def seen_to_its_end(at: SuperStep, body: asyncio.Task[Any], put_off: list[tuple[Any, ...]]) -> None:
    """Wait until a body has ended, whoever cancels the waiting; that is `put_off`, and to be made up for
    (`make_up_for`) once what has come of it is filed. Only where the super-step is over is the body left; it is
    cancelled, too, unless that sees it out."""
    while not body.done():
        try:
            await asyncio.wait([body])
        except asyncio.CancelledError as cancelled:
            if at.ending is not None:
                if not at.sees_out(body):
                    body.cancel()
                body.add_done_callback(see)
                raise
            put_off.append(cancelled.args)


def make_up_for(at: SuperStep, put_off: list[tuple[Any, ...]]) -> None:
    """Let come what was put off while a body was seen to its end, and where a replay has it. The interruption of the
    whole run comes behind all that is on record, so at the next await. Any other one was there before the body's
    record: it is raised here, and what was called has no result for its code."""
    task = asyncio.current_task()
    assert task is not None
    whole = (str(at.interruption),) if at.interruption is not None else None
    for words in put_off:
        if words != whole:
            raise asyncio.CancelledError(*words)
        task.uncancel()
        task.cancel(*words)


def disown(task: asyncio.Future[Any]) -> None:
    """Leave a task that does not end to itself: the end of the process does not wait for it, as `asyncio.run` would."""
    if isinstance(task, asyncio.Task):
        asyncio._unregister_task(task)
        _stuck.add(task)
        task.add_done_callback(_stuck.discard)


def leave(task: asyncio.Future[Any]) -> None:
    """Wait for a task no longer: what does not end when it is cancelled is left to itself."""
    if not task.done():
        task.cancel()
        disown(task)
    task.add_done_callback(see)


def where(task: asyncio.Future[Any]) -> str:
    """A task's name, and the innermost place of the user's code on its stack, for people."""
    if not isinstance(task, asyncio.Task):
        return str(task)
    frames = (getattr(each, "cr_frame", None) or getattr(each, "ag_frame", None) for each in stack(task.get_coro()))
    theirs = [each for each in frames if each is not None and not _is_machinery(each.f_globals.get("__name__", ""))]
    if not theirs:
        return str(task)
    code = theirs[-1].f_code
    return f"{task.get_name()}, in {code.co_name} at {code.co_filename}:{theirs[-1].f_lineno}"


def _is_machinery(module: str) -> bool:
    return module.partition(".")[0] in ("asyncio", "perdure")
