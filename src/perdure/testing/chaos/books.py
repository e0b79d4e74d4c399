"""The books: what the store's rows say about the runs of one tag, read once nothing moves any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from perdure.app import App
from perdure.core.failures import decode_error
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Checkpoint, Kind, Run, RunState, Worker
from perdure.core.requests import RunFilter
from perdure.core.states import TERMINAL
from perdure.runtime.payloads import load_payload
from perdure.store.pages import whole_log
from perdure.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Books:
    """The rows. `logs` and `endings` are by run; `signed` is what a thread's newest state holds."""

    runs: Mapping[int, Run]
    logs: Mapping[int, tuple[Checkpoint, ...]]
    endings: Mapping[int, tuple[RunState, Any]]
    """The result, or the error's message, of each terminal run."""
    signed: Mapping[str, list[tuple[int, int]]]
    workers: Mapping[int, Worker]


async def read_books(store: Store, app: App, tag: str) -> Books:
    """Everything about the runs of this tag; `app` knows the agents."""
    runs = {run.id: run for run in await runs_of(store, tag)}
    threads = {run.thread_id for run in runs.values() if run.agent == "ledger"}
    return Books(
        runs=runs,
        logs={run: tuple([row async for row in whole_log(store, run)]) for run in runs},
        endings=await _endings(store, app, runs),
        signed={thread_id: await _signed(app, thread_id) for thread_id in sorted(threads)},
        workers={worker.id: worker for worker in await store.workers(alive=False)},
    )


async def runs_of(store: Store, tag: str, state: RunState | None = None) -> list[Run]:
    """The runs of a tag, oldest first."""
    runs: list[Run] = []
    while True:
        after = runs[-1].id if runs else None
        page = await store.list_runs(RunFilter(state=state, tags=(tag,), limit=LIST_ROWS_MAX, after=after))
        runs += page
        if len(page) < LIST_ROWS_MAX:
            return sorted(runs, key=lambda run: run.id)


async def _endings(store: Store, app: App, runs: Mapping[int, Run]) -> dict[int, tuple[RunState, Any]]:
    ended = [run.id for run in runs.values() if run.state in TERMINAL]
    found: dict[int, tuple[RunState, Any]] = {}
    for at in range(0, len(ended), LIST_ROWS_MAX):
        for outcome in await store.outcomes(ended[at : at + LIST_ROWS_MAX]):
            run = runs[outcome.run]
            payload = await load_payload(store, run.thread, outcome.payload)
            value = decode_error(payload).message if outcome.failed else app.agents[run.agent].codec.decode(payload)
            found[run.id] = (run.state, value)
    return found


async def _signed(app: App, thread_id: str) -> list[tuple[int, int]]:
    state = await app.thread(thread_id).state()
    return [] if state is None else [(number, round) for number, round in state.entries]


def one_writer_after_the_other(records: Iterable[Checkpoint]) -> bool:
    """Whether along a run's log, and by time, no older fence wrote after a newer one, and one fence is one worker."""
    owners: dict[int, int] = {}
    times: dict[int, list[int]] = defaultdict(list)
    for record in records:
        if record.kind is Kind.BOUNDARY and record.super_step == 1:
            continue  # filed by the starter, before any claim
        times[record.fence].append(record.ended_at)
        if owners.setdefault(record.fence, record.worker) != record.worker:
            return False
    spans = [(min(times[fence]), max(times[fence])) for fence in sorted(times)]
    return all(earlier[1] <= later[0] for earlier, later in pairwise(spans))
