"""An open store for the length of one command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.limits import ID_CHARS_MAX
from perdure.core.records import Run, Thread, parse_run_id, run_id
from perdure.errors import NotFound, StoreUnavailable, UsageError
from perdure.runtime.settings import check_name
from perdure.store.protocol import Store

if TYPE_CHECKING:
    from perdure.app import App

T = TypeVar("T")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine."""
    return asyncio.run(main)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    """The store at this URL, open. A command that looks creates nothing: a SQLite file must be there."""
    from perdure.store import open_url

    require_there(url)
    store = open_url(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def opened_app(url: str) -> AsyncIterator[App]:
    """An app without agents on the store at this URL, open: what can be done without anybody's code."""
    from perdure.app import App

    require_there(url)
    async with App("perdure", store=url) as app:
        yield app


def require_there(url: str) -> None:
    """Refuse a SQLite file that does not exist, and a memory store, which nobody else can see into."""
    if url.startswith("memory:"):
        raise UsageError("memory:// lives inside one process, so there is nothing to see; give --store URL")
    path = sqlite_path(url)
    if path is not None and not path.exists():
        raise StoreUnavailable(
            f"there is no file {path}; give --store URL or set PERDURE_STORE (`perdure migrate` creates an empty store)"
        )


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite store; None for any other."""
    if not url.lower().startswith("sqlite://"):
        return None
    from perdure.store import open_url

    return Path(open_url(url).url.removeprefix("sqlite:///"))


async def find_thread(store: Store, name: str) -> Thread:
    """The thread of that name."""
    found = await store.get_thread(check_name("a thread id", name, ID_CHARS_MAX))
    if found is None:
        raise NotFound(f"there is no thread {name!r} in {store.url}; `perdure threads list` shows them", thread_id=name)
    return found


async def find_run(store: Store, name: str) -> Run:
    """The run of that name, as `runs list` prints it."""
    number = parse_run(name)
    found = await store.get_runs([number])
    if not found:
        raise NotFound(f"there is no run {run_id(number)} in {store.url}; `perdure runs list` shows them", run_id=name)
    return found[0]


def parse_run(name: str) -> int:
    """The number behind a run's name."""
    number = parse_run_id(name)
    if number is None:
        raise UsageError(f"{name!r} is not a run's name: run names look like r12, and `perdure runs list` shows them")
    return number
