"""User functions, whatever their colour: the one place that knows `async def`, `def`, threads and processes.

An `async def` is awaited on the loop. A `def` runs in a thread, with a copy of the caller's context. A `def` with
`cpu="process"` runs in a process pool: it is found there by its module and name, so it must be importable, and its
arguments and result must be picklable.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from contextlib import contextmanager
from typing import Any, Literal

from perdure.core.errors import one_line
from perdure.core.shown import shown
from perdure.errors import Unwind, UsageError
from perdure.runtime.body_threads import BodyThreads

Cpu = Literal["loop", "thread", "process"]

THREADS_MAX = 64
"""Threads for `def` steps: they mostly wait for a socket, and past this a queue is kinder than more stacks."""


CUT_SHORT = "something that it awaited was cancelled, and not by the code around it"


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives an awaitable, as far as can be known without calling."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(type(fn), "__call__", None))  # noqa: B004  # the method itself is wanted


def cpu_of(fn: Callable[..., Any], cpu: str | None) -> Cpu:
    """Where the function runs. `cpu` is what the user asked for: None, "thread" or "process"."""
    if cpu not in (None, "thread", "process"):
        raise UsageError(f'cpu={shown(cpu)} is neither "thread" nor "process"')
    if is_async(fn):
        if cpu is not None:
            raise UsageError(f"cpu={cpu!r} is for a plain def; {name_of(fn)} is async and runs on the event loop")
        return "loop"
    if cpu == "process":
        if "<locals>" in getattr(fn, "__qualname__", "<locals>") or getattr(fn, "__module__", None) is None:
            raise UsageError(
                f'cpu="process" needs a function that another process can import; move {name_of(fn)} to a module'
            )
        return "process"
    return "thread"


def name_of(fn: Callable[..., Any]) -> str:
    """A name for a callable: its own, or its type's."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__name__", None) or type(fn).__name__


class Pools:
    """The threads and processes of one worker (or of plain calls), made when first needed."""

    def __init__(self) -> None:
        self._threads: BodyThreads | None = None
        self._processes: Executor | None = None

    def threads(self) -> BodyThreads:
        if self._threads is None:
            self._threads = BodyThreads(THREADS_MAX)
        return self._threads

    def processes(self) -> Executor:
        if self._processes is None:
            # "spawn": a fork of a process with threads and open database connections is not safe.
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            self._processes = ProcessPoolExecutor(
                os.cpu_count() or 1, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
            )
        return self._processes

    def replace(self, broken: Executor) -> None:
        """Have new processes made at the next use: a pool of which one has died takes no more work."""
        if self._processes is broken:
            self._processes = None
            broken.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Let go without waiting: a thread that hangs in user code must not hang the worker."""
        if self._threads is not None:
            self._threads.close()
        if self._processes is not None:
            self._processes.shutdown(wait=False, cancel_futures=True)
        self._threads = self._processes = None


async def invoke(fn: Callable[..., Any], cpu: Cpu, pools: Pools, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function where it belongs and return its result."""
    match cpu:
        case "loop":
            return await fn(*args, **kwargs)
        case "thread":
            context = contextvars.copy_context()
            call = functools.partial(context.run, fn, *args, **kwargs)
            threads = pools.threads()
            job = threads.submit(call)
            try:
                result = await asyncio.wrap_future(job.future)
            except asyncio.CancelledError:
                threads.leave(job)
                raise
            return await result if inspect.isawaitable(result) else result
        case "process":
            target = (fn.__module__, fn.__qualname__)
            pool = pools.processes()
            try:
                return await asyncio.get_running_loop().run_in_executor(pool, _call_by_name, *target, args, kwargs)
            except BrokenExecutor as error:  # whose process it was that died, nobody knows: each is tried again
                pools.replace(pool)
                raise ConnectionError(f"a process died that ran {name_of(fn)}, or a step beside it: {error}") from error


def exited(error: SystemExit) -> RuntimeError:
    """What `sys.exit` in user code means for its run: a parser of arguments that gives up must not take the worker, and
    every run in it, along."""
    return RuntimeError(f"sys.exit({error.code!r}) was called; a worker does not exit for that")


def cancelled_from_within(error: asyncio.CancelledError) -> BaseException:
    """What a `CancelledError` means that leaves user code. Where nobody has cancelled its task, something that the code
    awaited was cancelled (a library closes its connections so): a failure as a lost connection is one, and no word of
    whoever waits for the code."""
    task = asyncio.current_task()
    return error if task is None or task.cancelling() else ConnectionAbortedError(CUT_SHORT)


def contained(error: BaseException) -> BaseException:
    """What it means that something leaves a body which is no `Exception`: a failure like any other, which can be
    recorded. The error itself, where it is somebody else's word and has to go on: an unwinding, a cancellation."""
    match error:
        case SystemExit():
            return exited(error)
        case asyncio.CancelledError():
            return cancelled_from_within(error)
        case Unwind() | KeyboardInterrupt() | GeneratorExit():
            return error
        case _:
            return RuntimeError(f"{one_line(error)} (it is no Exception, and was raised out of a body all the same)")


@contextmanager
def shielded() -> Iterator[None]:
    """The edge of user code that is no run's, a sink's or a source's: whatever it raises is a failure of its own, and
    ends neither the process nor, unheard, whoever has called it."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise exited(error) from error
    except asyncio.CancelledError as error:
        if (meant := cancelled_from_within(error)) is error:
            raise
        raise meant from error
    except BaseException as error:
        raise RuntimeError(f"it raised a {type(error).__name__}, which is no Exception") from error


def _end_with_parent() -> None:
    """In the pool's process: end when the worker does, however that ends. A process that waits for work holds both ends
    of the pipe that it waits on, so it would wait for ever after a worker that was killed; and a body that goes on
    would act for nobody."""
    import multiprocessing

    def watch() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="perdure-parent", daemon=True).start()


def _call_by_name(module: str, qualname: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In the pool's process: the name leads to the decorated step, whose function is called."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return getattr(found, "fn", found)(*args, **kwargs)
