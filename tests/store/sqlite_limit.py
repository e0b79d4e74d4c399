"""A process whose files may not grow: `python sqlite_limit.py PATH`. Commits until that is refused, then goes on."""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from perdure.core.changes import CommitOutcome
from perdure.errors import StoreUnavailable
from perdure.store.sqlite import SQLiteStore
from sqlite_child import begin, employ, step


async def main(path: str) -> None:
    store = SQLiteStore(path)
    await store.open()
    worker = await employ(store)
    claimed = await begin(store, worker, "agent")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(f"{path}-wal") + 200_000, hard))
    number = 0
    try:
        while number < 1_000:
            number += 1
            assert await store.commit(worker, [step(claimed, number, b"x" * 1_000)]) == CommitOutcome()
    except StoreUnavailable as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    kept = [row.seq for row in await store.checkpoints(claimed.run) if row.key]
    print("kept" if kept == list(range(1, number)) else f"{kept[-1]} of {number - 1}")
    assert await store.commit(worker, [step(claimed, number, b"x" * 1_000)]) == CommitOutcome()
    print("goes on")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
