"""A small world for runtime tests: an app on a memory store of its own, and a worker in the test's process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import App, RunFailed

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
