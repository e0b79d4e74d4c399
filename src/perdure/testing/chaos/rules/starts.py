"""Rules about starts, and about how runs end."""

from __future__ import annotations

from collections import defaultdict

from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import HeldReason, RunState, run_id
from perdure.core.states import TERMINAL
from perdure.testing.chaos.case import Case, Found
from perdure.testing.chaos.orders import Outcome, entries, outcome


def start_lost(case: Case) -> Found:
    for key, lines in case.account.started.items():
        for line in lines:
            if line.run not in case.books.runs:
                yield f"{key}, acknowledged as {run_id(line.run)}", [str(line)]


def two_runs(case: Case) -> Found:
    for key, runs in case.runs_of_key.items():
        if len(runs) > 1:
            yield key, [*map(str, case.account.started[key]), *(str(case.books.runs.get(run)) for run in sorted(runs))]


def unasked(case: Case) -> Found:
    for run in case.books.runs.values():
        if run.id not in case.orders:
            yield run_id(run.id), [str(run)]


def refused(case: Case) -> Found:
    for line in case.account.refused:
        asked = case.account.asked[line.key]
        if line.error != "ThreadBusy" or asked.if_busy != "reject":
            yield line.key, [str(asked), str(line)]
        elif case.runs_of_key.get(line.key) and line.key not in case.account.started:
            yield f"{line.key}: refused, and started all the same", [str(asked), str(line)]


def other_input(case: Case) -> Found:
    for line in case.account.tested:
        if not line.refused:
            yield line.key, [str(case.account.asked[line.key]), str(line)]


def early(case: Case) -> Found:
    for run_, asked in case.orders.items():
        run = case.books.runs[run_]
        if run.started_at is not None and run.started_at < run.created_at + int(asked.delay_s * 1_000_000):
            yield run_id(run_), [str(asked), str(run)]


def unfinished(case: Case) -> Found:
    for run in case.books.runs.values() if case.over else ():
        if run.state not in TERMINAL:
            yield f"{run_id(run.id)} is {run.state}", [str(run)]


def held(case: Case) -> Found:
    for line in case.account.held:
        poison = line.reason == HeldReason.POISON and line.strikes >= RECOVERIES_MAX
        exhausted = line.reason == HeldReason.EXHAUSTED and line.cut_short > 0
        if not poison and not exhausted:
            yield f"{run_id(line.run)}: {line.reason}", [str(line), str(case.books.runs.get(line.run))]


def untold(case: Case) -> Found:
    told = {line.key for line in case.account.told}
    for key, lines in case.account.started.items() if case.over else ():
        if key not in told:
            yield key, map(str, lines)


def result(case: Case) -> Found:
    for run, (state, value) in case.books.endings.items():
        asked = case.orders.get(run)
        if asked is not None and not agrees(outcome(asked.agent, asked.args), state, value):
            yield f"{run_id(run)} in the store", [str(asked), f"{state}: {value!r}"]
    for line in case.account.told:
        known = case.books.endings.get(line.run)
        if known is None or known != (line.state, line.value):
            yield f"{run_id(line.run)} as a client was told", [str(line), f"in the store: {known!r}"]


def agrees(wanted: Outcome, state: RunState, value: object) -> bool:
    """Whether a run has ended as it must."""
    if state is not wanted.state:
        return False
    return value == wanted.value if state is RunState.COMPLETED else str(wanted.value) in str(value)


def state(case: Case) -> Found:
    wanted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for run in sorted(case.books.runs.values(), key=lambda run: run.ordinal):
        if run.id in case.orders and run.state is RunState.COMPLETED:
            wanted[run.thread_id] += entries(case.orders[run.id].agent, case.orders[run.id].args)
    for thread_id, signed in case.books.signed.items() if case.over else ():
        if signed != wanted[thread_id]:
            yield thread_id, [f"signed: {signed}", f"wanted: {wanted[thread_id]}"]


def fell(case: Case) -> Found:
    for line in case.account.fell:
        yield f"{line.name} (process {line.fallen}), exit code {line.code}", line.words.splitlines()
