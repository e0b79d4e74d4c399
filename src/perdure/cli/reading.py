"""A run's log and a thread's state, read from the store and decoded as far as a page needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.cli.facts import Facts
from perdure.cli.timeline import Timeline, timeline
from perdure.core.display import render, to_jsonable
from perdure.core.failures import decode_error
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.records import Checkpoint, ErrorInfo, Kind, Run, Thread, Worker, worker_id
from perdure.core.snapshot import spilled
from perdure.runtime.payloads import load_payload, load_state
from perdure.store.pages import whole_log
from perdure.store.protocol import Store

WHOLE = 2 * PAYLOAD_BYTES_MAX
"""A limit of characters that no record reaches."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """Everything recorded about a run, and about who recorded it."""

    line: Timeline
    workers: Mapping[int, Worker]
    now_us: int
    loaded: Mapping[bytes, bytes]
    """What spilled payloads stand for, where that was read."""
    holders: Mapping[int, int]
    """By fence, the worker that recorded something under it."""

    def steps(self) -> Iterator[Checkpoint]:
        """Every recorded step."""
        return (line for step in self.line.super_steps for line in step.lines if isinstance(line, Checkpoint))

    def last_at(self, run: Run) -> int:
        """When the run's present claim last recorded something, else when it began as far as anybody knows."""
        recorded = [step.ended_at for step in self.steps() if step.fence == run.fence]
        return max(recorded, default=run.started_at or run.created_at)

    def arguments(self, boundary: Checkpoint) -> Any:
        """The arguments of a super-step: a list, or `args` and `kwargs` where some were given by name."""
        match self.value(boundary.payload):
            case [list() as args, dict() as kwargs]:
                return {"args": args, "kwargs": kwargs} if kwargs else args
            case other:
                return other

    def holder(self, fence: int) -> str:
        """Who recorded something under this fence; empty where nobody did."""
        return worker_id(self.holders[fence]) if fence in self.holders else ""

    def value(self, payload: bytes) -> Any:
        """The value of a payload, as JSON."""
        return render(self.loaded.get(payload, payload), WHOLE)

    def error(self, payload: bytes) -> ErrorInfo:
        """The error in a payload."""
        return decode_error(self.loaded.get(payload, payload))

    def size(self, payload: bytes) -> int | None:
        """Bytes of a payload; None for one that lies elsewhere and was not read."""
        if payload in self.loaded:
            return len(self.loaded[payload])
        return None if spilled(payload) else len(payload)


async def read_run(store: Store, run: Run, *, facts: Facts, full: bool) -> RunLog:
    """A run's log; the values of its steps too, with `full`."""
    log = [row async for row in whole_log(store, run.id)]
    attempts = await store.attempts(run.id)
    wanted = [row.payload for row in log if full or row.failed] + [row.error for row in attempts if row.error]
    loaded = {payload: await load_payload(store, run.thread, payload) for payload in wanted if spilled(payload)}
    holders = {row.fence: row.worker for row in log if row.kind is Kind.STEP}
    if run.worker is not None:
        holders[run.fence] = run.worker
    return RunLog(timeline(run, log, attempts), facts.workers, facts.now_us, loaded, holders)


async def read_state(store: Store, thread: Thread) -> Any:
    """The thread's newest state, as JSON; None before the first."""
    if thread.snapshot_run is None:
        return None
    rows = await store.checkpoints(thread.snapshot_run, super_step=thread.snapshot_step, boundaries=True)
    root = next((row.state for row in rows if row.state is not None), None)
    if root is None:
        return None
    data, _ = await load_state(store, thread.id, root)
    return to_jsonable(data, WHOLE)
