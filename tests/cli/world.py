"""A store on a SQLite file in which something of everything has happened, made through the store's own verbs.

`r1` was begun by w10, which died, and completed by w11 in two super-steps; `r2` on the same thread failed; `r3` is held
and `r4` waits behind it; `r5` is not due for a day; `r6` is running on w11; `r7` waits for a worker of queue `gpu`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.core.changes import AppendCheckpoint, BeginSuperStep, Change, EndRun, HoldRun, RecordAttempt
from perdure.core.errors import encode_error
from perdure.core.records import Claimed, ErrorInfo, HeldReason, IfBusy, RunState
from perdure.core.requests import ClaimRequest, NewWorker, StartRun
from perdure.core.snapshot import freeze
from perdure.store import Store, open_url

LONG: Final = "tenants/blue-whale/projects/" + "deep/" * 12 + "👩‍🚀-rocket-🚀/conversation-0123456789"
FIRST, SECOND = 10, 11
LEASE_US: Final = 600_000_000
encode: Final = msgspec.msgpack.encode


@dataclass
class Log:
    """The writes of one claim, in order."""

    store: Store
    worker: int
    claimed: Claimed
    now: int
    super_step: int = 1
    seq: int = 0

    async def write(self, *changes: Change) -> None:
        outcome = await self.store.commit(self.worker, changes)
        assert outcome.alive and not outcome.lost and not outcome.refused, outcome

    def step(self, key: str, value: Any, *, attempt: int = 1, took_us: int = 120_000) -> Change:
        self.seq += 1
        self.now += took_us
        return AppendCheckpoint(
            run=self.claimed.run, fence=self.claimed.fence, thread=self.claimed.thread, super_step=self.super_step,
            key=key, seq=self.seq, attempt=attempt, digest=7, failed=False, payload=encode(value),
            started_at=self.now - took_us, ended_at=self.now,
        )  # fmt: skip

    def failed_step(self, key: str, error: ErrorInfo, *, attempt: int) -> Change:
        made = self.step(key, None, attempt=attempt)
        return msgspec.structs.replace(made, failed=True, payload=encode_error(error))

    def attempt(self, key: str, number: int, error: ErrorInfo | None) -> Change:
        self.now += 250_000
        return RecordAttempt(
            run=self.claimed.run, fence=self.claimed.fence, thread=self.claimed.thread, super_step=self.super_step,
            key=key, attempt=number, error=None if error is None else encode_error(error),
            started_at=self.now - 250_000, ended_at=None if error is None else self.now,
        )  # fmt: skip

    def again(self, arguments: Any, state: Any) -> Change:
        self.super_step += 1
        frozen = freeze(state)
        return BeginSuperStep(
            run=self.claimed.run, fence=self.claimed.fence, thread=self.claimed.thread, super_step=self.super_step,
            payload=encode(arguments), state=frozen.root, ended_at=self.now, blobs=frozen.blobs,
        )  # fmt: skip

    def end(self, outcome: RunState, payload: bytes, state: Any = None) -> Change:
        frozen = None if state is None else freeze(state)
        return EndRun(
            run=self.claimed.run, fence=self.claimed.fence, thread=self.claimed.thread, super_step=self.super_step + 1,
            outcome=outcome, payload=payload, state=frozen.root if frozen else None, ended_at=self.now,
            blobs=frozen.blobs if frozen else (),
        )  # fmt: skip

    def hold(self, reason: HeldReason, detail: str) -> Change:
        return HoldRun(
            run=self.claimed.run, fence=self.claimed.fence, thread=self.claimed.thread, reason=reason, detail=detail
        )


def start(id: int, thread_id: str, agent: str = "research", **changes: Any) -> StartRun:
    """A start with a fixed id; its thread's is a hundred more."""
    made = StartRun(
        id=id, thread=100 + id, thread_id=thread_id, agent=agent, queue="default", priority=0, delay_us=0, key=None,
        digest=b"d" * 16, payload=encode((["why is the sky blue"], {})), if_busy=IfBusy.ENQUEUE,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


async def claim(store: Store, worker: int, now: int, *agents: str) -> Log:
    claimed = await store.claim(
        ClaimRequest(worker=worker, agents=agents, queues=("default",), deployment="blue+py3.11", limit=1)
    )
    return Log(store, worker, claimed[0], now)


async def make(url: str) -> None:
    """Let it all happen."""
    store = open_url(url)
    await store.open()
    try:
        now = await store.now_us()
        await store.start([start(1, "topics/7", key="order-1", tenant="acme", tags=("nightly", "urgent"))])
        await _taken_over_and_completed(store, now)
        await _failed(store, now)
        await _held(store, now)
        await store.start([start(5, LONG, "a-rather-long-agent-name-with-🚀", delay_us=131_400_000_000)])
        await store.start([start(6, "busy", "crunch")])
        running = await claim(store, SECOND, now, "crunch")
        await running.write(running.step("load", {"rows": 3}))
        await store.start([start(7, "gpu-thread", "embed", queue="gpu")])
        await store.set_idle(SECOND, True)
    finally:
        await store.close()


async def _register(store: Store, id: int, name: str) -> None:
    await store.register(NewWorker(id, name, "box", 4000 + id, "blue+py3.11", LEASE_US))


async def _taken_over_and_completed(store: Store, now: int) -> None:
    await _register(store, FIRST, "alpha")
    log = await claim(store, FIRST, now, "research")
    refused = ErrorInfo("httpx.ConnectError", "connection refused\nwhile reading", "Traceback …\nhttpx.ConnectError")
    await log.write(
        log.step("plan", {"queries": ["sky", "light"]}),
        log.step("search", ["a", "b"]),
        log.attempt("search#1", 1, refused),
    )
    await _register(store, SECOND, "beta")
    await store.take_over([FIRST], recoveries_max=5)
    log = await claim(store, SECOND, log.now + 900_000, "research")
    await log.write(log.attempt("search#1", 2, None), log.step("search#1", ["c"], attempt=3, took_us=1_450_000))
    await log.write(log.again((["and then?"], {}), {"asked": 1, "notes": ["blue", "wavelength"]}))
    await log.write(log.step("answer", {"text": "Because of Rayleigh scattering 🌈"}, took_us=2_800_000))
    result = {"answer": "Rayleigh scattering", "sources": ["a", "c"]}
    state = {"asked": 2, "notes": ["blue", "wavelength", "scattering 🌈"]}
    await log.write(log.end(RunState.COMPLETED, encode(result), state))


async def _failed(store: Store, now: int) -> None:
    await store.start([start(2, "topics/7")])
    log = await claim(store, SECOND, now, "research")
    broken = ErrorInfo(
        "builtins.ValueError", "no such topic: 'sky'\ntry another", "Traceback …\nValueError: no such topic"
    )
    ended = ErrorInfo("perdure.errors.StepFailed", "step 'plan' failed: no such topic", "Traceback …", ("plan",))
    await log.write(log.failed_step("plan", broken, attempt=1))
    await log.write(log.end(RunState.FAILED, encode_error(ended)))


async def _held(store: Store, now: int) -> None:
    await store.start([start(3, "stuck"), start(4, "stuck")])
    log = await claim(store, SECOND, now, "research")
    await log.write(
        log.step("plan", 1), log.hold(HeldReason.DIVERGED, "step 'search' was recorded with other arguments")
    )


def build(path: Path) -> str:
    """The store's URL."""
    url = f"sqlite:///{path}"
    asyncio.run(make(url))
    return url
