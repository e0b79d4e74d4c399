"""What the store knows of runs, gathered with as few reads as a page of them needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.cli.awaiting import Around
from perdure.cli.waiting import Why, why
from perdure.core.display import render
from perdure.core.failures import decode_error
from perdure.core.records import ErrorInfo, Run, RunState, Wait, WaitKind, Worker, WorkerState
from perdure.core.states import TERMINAL
from perdure.runtime.awaited import thread_names
from perdure.runtime.payloads import load_payload
from perdure.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Fact:
    """A run with the rows around it that say where it stands."""

    run: Run
    why: Why | None
    worker: Worker | None
    """Who executes it now."""
    result: Any
    """As JSON, if it completed."""
    result_size: int | None
    """Bytes of the result; None without one."""
    error: ErrorInfo | None
    """If it failed, or was cancelled."""
    waits: tuple[Wait, ...] = ()
    """What it waits for, by key; of a run that is executed, what its branches wait for."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A page of runs at one moment on the store's clock, with every worker they name."""

    now_us: int
    workers: dict[int, Worker]
    items: tuple[Fact, ...]
    around: Around
    """What the waits point to."""
    silent: frozenset[int] = frozenset()
    """Workers whose rows say alive, and that show no sign of life."""


async def gather_facts(store: Store, runs: Sequence[Run]) -> Facts:
    """Everything a listing says about these runs, in their order."""
    now_us = await store.now_us()
    workers = {worker.id: worker for worker in await store.workers(alive=False)}
    alive = [worker for worker in workers.values() if worker.state is WorkerState.ALIVE]
    silent = frozenset(await store.silent_workers())
    endings = await _endings(store, runs)
    heads = await _heads(store, runs)
    waits = await _waits(store, runs)
    around = await read_around(store, [wait for some in waits.values() for wait in some])

    def fact(run: Run) -> Fact:
        failed, payload = endings.get(run.id, (False, None))
        return Fact(
            run,
            why(
                run, head=heads.get(run.thread), workers=alive, now_us=now_us, silent=silent,
                waits=waits.get(run.id, ()), around=around,
            ),
            workers.get(run.worker) if run.worker is not None else None,
            result=render(payload) if payload is not None and not failed else None,
            result_size=len(payload) if payload is not None and not failed else None,
            error=decode_error(payload) if payload is not None and failed else None,
            waits=waits.get(run.id, ()),
        )  # fmt: skip

    return Facts(now_us, workers, tuple(fact(run) for run in runs), around, silent)


async def _waits(store: Store, runs: Sequence[Run]) -> dict[int, tuple[Wait, ...]]:
    """By run, what those wait for that have begun."""
    begun = [run.id for run in runs if run.attempt and run.state not in TERMINAL]
    found: dict[int, tuple[Wait, ...]] = {}
    for wait in await store.waits(begun) if begun else ():
        found[wait.run] = (*found.get(wait.run, ()), wait)
    return found


async def read_around(store: Store, waits: Sequence[Wait]) -> Around:
    """The questions, runs and threads that these waits point to."""

    def targets(kind: WaitKind) -> list[int]:
        return sorted({wait.target for wait in waits if wait.kind is kind and wait.target is not None})

    questions, runs = targets(WaitKind.ANSWER), targets(WaitKind.RUN)
    return Around(
        {row.id: row for row in (await store.get_interrupts(questions) if questions else ())},
        {row.id: row for row in (await store.get_runs(runs) if runs else ())},
        await thread_names(store, targets(WaitKind.ROOM)),
    )


async def _endings(store: Store, runs: Sequence[Run]) -> dict[int, tuple[bool, bytes]]:
    """By run, whether it failed, and its result or its error."""
    ended = {run.id: run for run in runs if run.state in TERMINAL}
    outcomes = await store.outcomes(list(ended)) if ended else []
    return {
        outcome.run: (outcome.failed, await load_payload(store, ended[outcome.run].thread, outcome.payload))
        for outcome in outcomes
    }


async def _heads(store: Store, runs: Sequence[Run]) -> dict[int, Run]:
    """By thread, the run whose turn it is, for the threads on which one of these runs is queued behind it."""
    behind = {run.thread: run.thread_id for run in runs if run.state is RunState.QUEUED and not run.ready}
    threads = [await store.get_thread(thread_id) for thread_id in behind.values()]
    heads = [thread.head for thread in threads if thread is not None and thread.head is not None]
    return {run.thread: run for run in (await store.get_runs(heads) if heads else [])}
