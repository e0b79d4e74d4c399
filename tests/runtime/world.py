"""A small world for runtime tests: an app on a memory store of its own, and a worker in the test's process."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import App, Handle, RunFailed

_names = itertools.count()

SETTINGS: dict[str, Any] = {"lease_s": 5.0, "poll_s": 0.05, "grace_s": 5.0}


def fresh_app(**options: Any) -> App:
    """An app on a memory store that no other test knows."""
    return App("test", store=f"memory://runtime-{next(_names)}", **options)


@asynccontextmanager
async def working(app: App, **settings: Any) -> AsyncIterator[Any]:
    """The app, open, with a worker."""
    async with app, app.worker(**{**SETTINGS, **settings}) as worker:
        yield worker


def result_of(app: App, agent: Any, *args: Any, **options: Any) -> Any:
    """Start one run, execute it, return its result."""

    async def main() -> Any:
        async with working(app):
            handle = await app.start(agent, *args, **options)
            return await handle.result(timeout=20)

    return asyncio.run(main())


def result_after_retries(app: App, agent: Any, *, failures: int = 1) -> Any:
    """Start one run, see it fail so often, send it on each time, return its result."""

    async def main() -> Any:
        async with working(app):
            handle = await app.start(agent)
            for _ in range(failures):
                with pytest.raises(RunFailed):
                    await handle.result(timeout=20)
                await app.retry(handle.run_id)
            return await handle.result(timeout=20)

    return asyncio.run(main())


async def until(condition: Callable[[], Awaitable[bool]], what: str, seconds: float = 20.0) -> None:
    """Look again and again, yielding in between, until the condition holds."""
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    except TimeoutError:
        raise AssertionError(f"never happened: {what}") from None


async def parked(handle: Handle[Any], worker: Any = None) -> None:
    """Look until the run waits without a worker; with one, until nothing is in that worker's hands either."""

    async def waits() -> bool:
        info = await handle.status()
        assert info.state not in ("completed", "failed", "cancelled", "held"), f"it did not wait: {info}"
        return info.state == "waiting" and (worker is None or worker.running == 0)

    await until(waits, f"{handle.run_id} is parked")


async def asked(app: App, handle: Handle[Any], count: int = 1) -> dict[str, str]:
    """Look until the run has so many open questions; their ids by their names."""
    found: dict[str, str] = {}

    async def are_there() -> bool:
        found.clear()
        found.update({each.name: each.id for each in await app.interrupts(run_id=handle.run_id)})
        return len(found) >= count

    await until(are_there, f"{handle.run_id} has asked {count} questions")
    return found


async def idle(turns: int = 100) -> None:
    """Let everything run that can."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def crash(app: App, worker: Any) -> None:
    """End what the worker has in hand as its death would, at once; it goes on under a new identity."""
    number = worker.id
    worker._tenure.lose("killed by the test")
    await (await app._client()).store.take_over([number], recoveries_max=5)


async def keys_of(handle: Handle[Any]) -> list[str]:
    """The keys of what the run has recorded, in order."""
    return [row.key for row in await handle.history() if row.key]


async def passes(seconds: float) -> None:
    """Let so much time pass, for what must have come due by then."""
    end = time.monotonic() + seconds

    async def has_passed() -> bool:
        return time.monotonic() >= end

    await until(has_passed, "time passes")
