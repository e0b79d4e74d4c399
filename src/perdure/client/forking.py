"""Forks: a new thread that goes on from a checkpoint of another, which stays as it is.

A fork takes the arguments and the state that a super-step began with, either of which may be changed, and the records
of its steps up to a key. What is recorded is not run again; the step of that key, and all after it, are. What the new
run shares with the old one are the things that its records name: children, above all, are not started again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal

import msgspec

from perdure.client.connection import Client
from perdure.client.requests import no_run, run_number
from perdure.core.budgets import Limits
from perdure.core.deliveries import Billing
from perdure.core.digests import digest
from perdure.core.records import Blob, Checkpoint, IfBusy, Kind, Run, RunState, Thread, run_id
from perdure.core.requests import ForkRun, Started, StartRun
from perdure.core.shown import shown
from perdure.core.snapshot import freeze, spill, spilled
from perdure.errors import Conflict, NotFound, UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.patience import patiently
from perdure.runtime.payloads import load_blobs, load_payload
from perdure.runtime.starting import checked_id, new_run
from perdure.store.pages import whole_log
from perdure.store.protocol import Store


class Unset(Enum):
    """What stands for "as it was" where None is a value of its own."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
"""As it was."""

SUPER_STEPS_MAX: Final = 2**31 - 1
"""What a store keeps as a super-step's number."""

NAMED_MAX: Final = 20
"""Super-steps or keys that an error names."""


class Edits(msgspec.Struct, frozen=True):
    """What a fork changes."""

    state: Any = UNSET
    args: Sequence[Any] | Literal[Unset.UNSET] = UNSET
    kwargs: Mapping[str, Any] | Literal[Unset.UNSET] = UNSET

    @property
    def any(self) -> bool:
        """Whether it changes anything."""
        return self.state is not UNSET or self.arguments

    @property
    def arguments(self) -> bool:
        """Whether it changes the arguments."""
        return self.args is not UNSET or self.kwargs is not UNSET


async def fork(
    client: Client, thread: Thread, agent: Agent[..., Any] | None, *, run: str | None, super_step: int | None,
    key: str | None, thread_id: str | None, edits: Edits, limits: Limits | None, billing: Billing | None,
) -> Started:  # fmt: skip
    """Put the new run on disk. `agent` is needed where something is changed. `limits` are those of its own budget."""
    name = None if thread_id is None else checked_id("a thread id", thread_id)
    source = await _run(client, thread, run)
    number = _checked_number(source.super_step if super_step is None else super_step)
    boundary = await _boundary(client.store, source, number)
    records = await _records(client.store, source, number, key)
    first, own = await new_run(client.ids, limits)
    arguments, blobs = await _arguments(client.store, boundary, thread, agent, edits)
    root, more = await _state(client.store, boundary, thread, source, agent, edits)
    blobs |= more
    for record in records:
        blobs |= await _spilled(client.store, thread.id, record.payload)
    start = StartRun(
        id=first, thread=first + 1, thread_id=name or run_id(first), agent=thread.agent, queue=source.queue,
        priority=source.priority, delay_us=0, key=None, digest=digest(arguments), payload=arguments,
        if_busy=IfBusy.REJECT, tenant=source.tenant, tags=source.tags,
        blobs=tuple(Blob(address, data) for address, data in blobs.items()), billing=billing,
        budget=own,
    )  # fmt: skip
    moved = tuple(msgspec.structs.replace(record, run=first) for record in records)
    new = ForkRun(start, number, root, moved)
    outcome = await patiently("fork", lambda: client.store.fork(new))
    if isinstance(outcome, Started):
        return outcome
    raise Conflict(
        f"thread {start.thread_id!r} exists already; a fork makes a new one: give another thread_id, or leave it out",
        thread_id=start.thread_id,
    )


# -- what it goes on from ---------------------------------------------------------------------------------------------


async def _run(client: Client, thread: Thread, run: str | None) -> Run:
    """That run of the thread, or its newest."""
    if run is None:
        newest = await client.store.thread_checkpoints(thread.id, limit=1)  # in the thread's order, not in that of ids
        if not newest:
            raise NotFound(f"thread {thread.thread_id!r} has no run to fork", thread_id=thread.thread_id)
        run = run_id(newest[0].run)
    for row in await client.store.get_runs([run_number(run)]):
        if row.thread == thread.id:
            return row
        raise NotFound(
            f"run {run} belongs to thread {row.thread_id!r}, not to {thread.thread_id!r}: fork that one",
            run_id=run, thread_id=row.thread_id,
        )  # fmt: skip
    raise no_run(run, client.store.url)


def _checked_number(super_step: object) -> int:
    if isinstance(super_step, bool) or not isinstance(super_step, int) or not 1 <= super_step <= SUPER_STEPS_MAX:
        raise UsageError(
            f"super_step is {shown(super_step)}; they are numbered from 1, up to {SUPER_STEPS_MAX:,} at most"
        )
    return super_step


async def _boundary(store: Store, run: Run, number: int) -> Checkpoint:
    """The start of that super-step."""
    for row in await store.checkpoints(run.id, super_step=number, boundaries=True):
        if row.kind is Kind.BOUNDARY:
            return row
    there = [row.super_step async for row in whole_log(store, run.id, boundaries=True) if row.kind is Kind.BOUNDARY]
    raise NotFound(
        f"run {run_id(run.id)} has no super-step {number}; it has {_listed([str(each) for each in there])}",
        run_id=run_id(run.id), super_step=number, super_steps=tuple(there),
    )  # fmt: skip


async def _records(store: Store, run: Run, number: int, key: str | None) -> list[Checkpoint]:
    """The records of that super-step before that key, in the order in which they were made; none without a key."""
    if key is None:
        return []
    if not isinstance(key, str):
        raise UsageError(f"key is {shown(key)}; give the key of a step as text, as `perdure runs show` has it")
    rows = [row async for row in whole_log(store, run.id, super_step=number) if row.kind is Kind.STEP]
    for at in rows:
        if at.key == key:
            return [row for row in rows if row.seq < at.seq]
    keys = [row.key for row in rows]
    raise NotFound(
        f"super-step {number} of run {run_id(run.id)} has no record under {key!r}; it has {_listed(keys)}",
        run_id=run_id(run.id), super_step=number, key=key, keys=tuple(keys),
    )  # fmt: skip


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return (", ".join(names[:NAMED_MAX]) or "none") + more


# -- what it takes with it --------------------------------------------------------------------------------------------


async def _arguments(
    store: Store, boundary: Checkpoint, thread: Thread, agent: Agent[..., Any] | None, edits: Edits
) -> tuple[bytes, dict[bytes, bytes]]:
    """The arguments of the super-step, as their row keeps them, and the blob behind them if there is one."""
    if not edits.arguments:
        return boundary.payload, await _spilled(store, thread.id, boundary.payload)
    assert agent is not None, "edited arguments are checked by their agent"
    args = () if edits.args is UNSET else edits.args
    kwargs = {} if edits.kwargs is UNSET else edits.kwargs
    if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
        raise UsageError(
            f"args={shown(args)}, kwargs={shown(kwargs)}: give a list of arguments, and a dict of those by name"
        )
    if not all(isinstance(name, str) for name in kwargs):
        raise UsageError(f"kwargs={shown(kwargs)}: the names of arguments are text")
    args, kwargs = tuple(args), dict(kwargs)
    payload, blobs = spill(agent.signature.bind_encode(args, kwargs))
    return payload, {blob.digest: blob.data for blob in blobs}


async def _state(
    store: Store, boundary: Checkpoint, thread: Thread, run: Run, agent: Agent[..., Any] | None, edits: Edits
) -> tuple[bytes | None, dict[bytes, bytes]]:
    """The root of the state that the super-step begins with, and all its blobs."""
    if edits.state is not UNSET:
        assert agent is not None, "an edited state is checked by its agent"
        if agent.state is None:
            raise UsageError(f"agent {agent.name} has no state to change; declare it: (…, *, state: MyState)")
        frozen = freeze(agent.state.dump(edits.state))
        return frozen.root, {blob.digest: blob.data for blob in frozen.blobs}
    root = boundary.state if boundary.super_step > 1 else await _state_before(store, thread, run)
    return root, {} if root is None else await load_blobs(store, thread.id, root)


async def _state_before(store: Store, thread: Thread, run: Run) -> bytes | None:
    """The thread's state before this run: the newest that an earlier one has left there."""
    if thread.snapshot_run is None or thread.snapshot_step is None:
        return None
    newest = await store.checkpoints(thread.snapshot_run, super_step=thread.snapshot_step, boundaries=True)
    if not any(row.state is not None for row in newest):
        return None  # the agent has no state, however long its thread
    after = (run.id, 1)
    while page := await store.thread_checkpoints(thread.id, after=after):
        with_state = [row for row in page if row.state is not None]
        undone = {
            each.id
            for each in await store.get_runs(sorted({row.run for row in with_state}))
            if each.rollback and each.state is RunState.CANCELLED
        }
        for row in with_state:
            if row.run not in undone:
                return row.state
        after = page[-1].run, page[-1].super_step
    return None


async def _spilled(store: Store, thread: int, payload: bytes) -> dict[bytes, bytes]:
    """The blob behind a payload, if there is one."""
    address = spilled(payload)
    return {} if address is None else {address: await load_payload(store, thread, payload)}
