"""Sending on what has come to rest without a result: failed, cancelled and held runs."""

from __future__ import annotations

import shlex

from perdure.client.connection import Client
from perdure.client.requests import no_run
from perdure.core.failures import decode_error
from perdure.core.records import Run, RunState, run_id
from perdure.errors import Conflict
from perdure.runtime.payloads import load_payload


async def retry(client: Client, run: Run, *, undo: bool) -> Run:
    """Send a failed or cancelled run on: the steps whose failure ended it run again, recorded results stay; with `undo`
    only the undos of its effects."""
    after = await client.store.retry(run.id, () if undo else await _failed_keys(client, run), undo=undo)
    if after is not None and after.state in (RunState.FAILED, RunState.CANCELLED):
        raise _nothing_to_undo(after) if undo else _undone(after) if after.undoing else await _gone_on(client, after)
    return _sent_on(client, run.id, after, "failed or cancelled", "retry")


async def release(client: Client, run: int) -> Run:
    """Send a held run on."""
    return _sent_on(client, run, await client.store.release(run), "held", "release")


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
        raise Conflict(
            f"run {run_id(number)} is {run.state}; {verb} is for runs that are {wanted}", run_id=run_id(number),
            state=run.state,
        )  # fmt: skip
    return run
