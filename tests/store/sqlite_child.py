"""What another process does to a test's file: `python sqlite_child.py WHAT PATH`. It tells each step on its output."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

from perdure.core.changes import AppendCheckpoint, CommitOutcome
from perdure.core.records import Claimed, IfBusy
from perdure.core.requests import ClaimRequest, NewWorker, StartRun
from perdure.errors import StoreUnavailable
from perdure.store.protocol import Hint, Transaction
from perdure.store.sqlite import SQLiteStore

LEASE_US = 60_000_000


def tell(*words: object) -> None:
    print(*words, flush=True)


async def employ(store: SQLiteStore) -> int:
    """Register a worker; its id."""
    worker = await store.reserve_ids(1)
    await store.register(NewWorker(worker, "child", "host", os.getpid(), "v1", LEASE_US))
    return worker


async def ask(store: SQLiteStore, thread_id: str, *, agent: str = "agent") -> StartRun:
    """A start with fresh ids."""
    first = await store.reserve_ids(2)
    return StartRun(first, first + 1, thread_id, agent, "default", 0, 0, None, b"digest", b"in", IfBusy.ENQUEUE)


async def begin(store: SQLiteStore, worker: int, thread_id: str) -> Claimed:
    """Start a run of an agent that only this process serves, and claim it."""
    await store.start([await ask(store, thread_id, agent=thread_id)])
    (claimed,) = await store.claim(ClaimRequest(worker, (thread_id,), ("default",), "v1", 1))
    return claimed


def step(claimed: Claimed, number: int, payload: bytes = b"result") -> AppendCheckpoint:
    at = (claimed.run, claimed.fence, claimed.thread, claimed.super_step, f"step#{number}", number)
    return AppendCheckpoint(*at, attempt=1, digest=7, failed=False, payload=payload, started_at=1, ended_at=2)


async def open_only(store: SQLiteStore) -> None:
    """Wait for the word, then open the file at the same moment as others."""
    tell("ready")
    sys.stdin.readline()
    await store.open()
    tell("opened")
    await store.close()


async def attend(store: SQLiteStore) -> None:
    """Attend to a worker until killed."""
    await store.open()
    worker = await employ(store)
    assert await store.attend(worker)
    tell("attending", worker)
    await asyncio.Event().wait()


async def attend_and_fork(store: SQLiteStore) -> None:
    """The same, with a forked child that inherits every descriptor."""
    await store.open()
    worker = await employ(store)
    assert await store.attend(worker)
    child = os.fork()
    if child == 0:
        tell("attending", worker)  # here the descriptors are closed: nobody is to look before
        sys.stdin.readline()
        os._exit(0)
    await asyncio.Event().wait()


async def listen(store: SQLiteStore) -> None:
    """Tell every hint until killed; an idle worker, so that starts are hinted."""
    await store.open()
    await store.set_idle(await employ(store), True)
    store.listen(lambda hint: tell("hint", hint.value))
    tell("listening")
    await asyncio.Event().wait()


async def write(store: SQLiteStore) -> None:
    """Record steps until killed, telling each number once it is acknowledged."""
    await store.open()
    worker = await employ(store)
    claimed = await begin(store, worker, f"child-{os.getpid()}")
    tell("writing", claimed.run)
    number = 0
    while True:
        number += 1
        await store.commit(worker, [step(claimed, number)])
        tell("wrote", number)


async def fill(store: SQLiteStore) -> None:
    """Commit until the files may not grow any more, then let them grow and go on."""
    await store.open()
    worker = await employ(store)
    claimed = await begin(store, worker, "agent")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = Path(store.url.removeprefix("sqlite:///") + "-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal.stat().st_size + 200_000, hard))
    number = 0
    try:
        while number < 1_000:
            number += 1
            assert await store.commit(worker, [step(claimed, number, b"x" * 1_000)]) == CommitOutcome()
    except StoreUnavailable as error:
        tell("refused", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    tell("acknowledged", number - 1, "kept", *(row.seq for row in await store.checkpoints(claimed.run) if row.key))
    assert await store.commit(worker, [step(claimed, number, b"x" * 1_000)]) == CommitOutcome()
    tell("went on")
    await store.close()


async def hang(store: SQLiteStore) -> None:
    """Write a lot in a transaction, and never end it."""
    await store.open()
    worker = await employ(store)
    claimed = await begin(store, worker, "agent")

    async def work(tx: Transaction) -> AppendCheckpoint:
        await tx.execute("create table mine (name text)")
        await tx.execute_many("insert into mine values (?)", [("x" * 1_000,)] * 1_000)
        tell("hanging", worker, claimed.run)
        await asyncio.Event().wait()
        return step(claimed, 1)

    await store.transact(worker, (claimed.run, claimed.super_step, "step#1"), work)


async def answer(store: SQLiteStore) -> None:
    """Claim and record one step as soon as a hint says that there is work; tell how long ago it was started."""
    await store.open()
    worker = await employ(store)
    woken = asyncio.Event()
    store.listen(lambda hint: woken.set() if hint is Hint.WORK else None)
    await store.set_idle(worker, True)
    tell("listening")
    while True:
        await woken.wait()
        woken.clear()
        for claimed in await store.claim(ClaimRequest(worker, ("agent",), ("default",), "v1", 10)):
            tell("started", (time.time_ns() // 1000 - claimed.created_at) / 1000, "ms")


if __name__ == "__main__":
    what, path = sys.argv[1:]
    asyncio.run(globals()[what](SQLiteStore(path)))
