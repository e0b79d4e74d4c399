"""Sending on what has come to rest without a result: failed, cancelled and held runs."""

from __future__ import annotations

import shlex
from typing import Final, assert_never

from perdure.client.connection import Client
from perdure.client.requests import no_run
from perdure.core.failures import decode_error
from perdure.core.records import Run, RunState, run_id
from perdure.errors import Conflict
from perdure.runtime.payloads import load_payload

_STOPPED: Final = (RunState.FAILED, RunState.CANCELLED)


async def retry(client: Client, run: Run, *, undo: bool) -> Run:
    """Send a failed or cancelled run on: the steps whose failure ended it run again, recorded results stay; with `undo`
    only the undos of its effects."""
    if run.state not in _STOPPED:
        raise _not_to_be_sent_on(run, "failed or cancelled", "retry")
    after = await client.store.retry(run.id, () if undo else await _failed_keys(client, run), undo=undo)
    if after is not None and after.state in _STOPPED:
        raise _nothing_to_undo(after) if undo else _undone(after) if after.undoing else await _gone_on(client, after)
    return _sent_on(client, run.id, after, "failed or cancelled", "retry")


async def release(client: Client, run: Run) -> Run:
    """Send a held run on."""
    if run.state is not RunState.HELD:
        raise _not_to_be_sent_on(run, "held", "release")
    return _sent_on(client, run.id, await client.store.release(run.id), "held", "release")


async def _failed_keys(client: Client, run: Run) -> tuple[str, ...]:
    """The steps whose failure ended the run."""
    for outcome in await client.store.outcomes([run.id]):
        if outcome.failed:
            return decode_error(await load_payload(client.store, run.thread, outcome.payload)).failed_keys
    return ()


def _undone(run: Run) -> Conflict:
    """Why a run was not sent on whose effects were undone: its records would say that they happened."""
    name = run_id(run.id)
    return Conflict(
        f"run {name} is {run.state}, and what it had done was undone (`perdure effects list --run {name}`): its "
        "records do not hold any more. Start a new run, or fork the thread from its beginning "
        f"(`perdure fork {shlex.quote(run.thread_id)} --run {name} --super-step 1`); `perdure retry {name} --undo` "
        "tries undos that failed once more",
        run_id=name, thread_id=run.thread_id, state=run.state,
    )  # fmt: skip


def _nothing_to_undo(run: Run) -> Conflict:
    name = run_id(run.id)
    return Conflict(
        f"run {name} is {run.state}, and nothing is left of it to be undone; `perdure effects list --run {name}` shows "
        "what it did",
        run_id=name, state=run.state,
    )  # fmt: skip


async def _gone_on(client: Client, run: Run) -> Conflict:
    """Why a run was not sent on: its state is one that later runs of the thread have built upon, or may."""
    thread = await client.store.get_thread(run.thread_id)
    name = run_id(run.id)
    undo = "going on from there would undo the state of later runs"
    if thread is not None and thread.snapshot_run == run.id and thread.head is not None:
        why = f"{run_id(thread.head)} has begun on thread {run.thread_id!r} since {name} ended in super-step"
        remedy = "wait for its end, and try again if it fails"
    else:
        why = f"thread {run.thread_id!r} has gone on since {name} ended in super-step"
        remedy = "start a new run on the thread instead"
    return Conflict(f"{why} {run.super_step}; {undo}: {remedy}", run_id=name, thread_id=run.thread_id)


def _sent_on(client: Client, number: int, run: Run | None, wanted: str, verb: str) -> Run:
    if run is None:
        raise no_run(run_id(number), client.store.url)
    if run.state is not RunState.QUEUED:
        raise _not_to_be_sent_on(run, wanted, verb)
    return run


def _not_to_be_sent_on(run: Run, wanted: str, verb: str) -> Conflict:
    """The refusal, with what can be done about a run in that state."""
    name = run_id(run.id)
    match run.state:
        case RunState.HELD:
            remedy = f"`perdure release {name}` sends this one on"
        case RunState.FAILED | RunState.CANCELLED:
            remedy = f"`perdure retry {name}` sends this one on"
        case RunState.COMPLETED:
            remedy = "this one has its result; start a new run"
        case RunState.RUNNING:
            remedy = f"this one is under way (`perdure runs show {name}`)"
        case RunState.QUEUED | RunState.WAITING:
            remedy = f"this one goes on by itself; `perdure runs show {name}` says what it waits for"
        case _:
            assert_never(run.state)
    return Conflict(
        f"run {name} is {run.state}; {verb} is for runs that are {wanted}: {remedy}", run_id=name, state=run.state
    )
