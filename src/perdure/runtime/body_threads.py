"""Threads for the bodies of `def` steps, which may hang.

A thread cannot be ended from outside. So a body that outlives its time limit is left to itself: another thread takes
its place, and the end of the process does not wait for it. (`ThreadPoolExecutor` does both the other way round: 64 hung
calls would be the end of a worker's work, and one would keep its process from ending.) Threads are made when they are
needed, and kept.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

LEFT_MAX = 256
"""Threads left to themselves at a time; past this many, hung bodies keep their places."""


class Job:
    """One call, and the future of its result."""

    __slots__ = ("call", "future", "left")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.future: Future[Any] = Future()
        self.left = False


class BodyThreads:
    """Up to `limit` threads, and those that were left to themselves."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._queued = 0
        self._left = 0

    def submit(self, call: Callable[[], Any]) -> Job:
        """Have a thread call this as soon as one is free."""
        job = Job(call)
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._threads < self._limit:
                self._start()
            else:
                self._queued += 1
            self._jobs.put(job)
        return job

    def leave(self, job: Job) -> None:
        """Nobody waits for this call any more: if it runs, leave it its thread, and make another."""
        with self._lock:
            if job.left or not job.future.running() or self._left >= LEFT_MAX:
                return
            job.left = True
            self._left += 1
            self._threads -= 1
            if self._queued:
                self._queued -= 1
                self._start()

    def close(self) -> None:
        """End the threads, each after what it does now."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="perdure-step", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._do(job)
            with self._lock:
                if job.left:
                    self._left -= 1
                    return
                if self._queued:
                    self._queued -= 1
                else:
                    self._idle += 1
            del job  # an idle thread holds nothing

    def _do(self, job: Job) -> None:
        try:
            result = job.call()
        except BaseException as error:  # whatever it is, it is for whoever waits
            job.future.set_exception(error)
        else:
            job.future.set_result(result)
