"""Threads for `def` steps, without threads: a body runs where it is called, to its end.

A simulated world has one thread, so that a seed repeats it. A plain `def` step therefore blocks its process's loop
while it runs, which takes no time there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from perdure.runtime.body_threads import BodyThreads, Job
from perdure.runtime.callables import Pools


class InlineThreads(BodyThreads):
    """Body threads that are not there."""

    def __init__(self) -> None:
        super().__init__(limit=0)

    def submit(self, call: Callable[[], Any]) -> Job:
        job = Job(call)
        _run(job.future, call)
        return job

    def leave(self, job: Job) -> None:
        """Nothing runs on."""

    def close(self) -> None:
        """Nothing runs."""


class InlineExecutor(Executor):
    """The same for `cpu="process"`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        _run(future, lambda: fn(*args, **kwargs))
        return future


class InlinePools(Pools):
    """What a worker of a simulated world runs `def` steps in."""

    def threads(self) -> BodyThreads:
        return InlineThreads()

    def processes(self) -> Executor:
        return InlineExecutor()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except Exception as error:  # the edge of user code: a step's body
        future.set_exception(error)
