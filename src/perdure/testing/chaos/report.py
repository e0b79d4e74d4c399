"""The report: a verdict in numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, Final

from perdure.core.records import RunState
from perdure.testing.chaos.account import Account, Execution
from perdure.testing.chaos.case import Rule
from perdure.testing.chaos.faults import Fault
from perdure.testing.chaos.rules.bodies import is_value
from perdure.testing.chaos.script import Script, Verdict

DEADLY: Final = (Fault.KILL_WORKER, Fault.FREEZE_WORKER)
"""After these, somebody else has to go on with a worker's runs."""


@dataclass(frozen=True, slots=True)
class Report:
    """What happened, counted."""

    seed: int
    seconds: float
    settled_s: float
    over: bool
    faults: dict[str, int]
    asked: int
    acknowledged: int
    refused: int
    joined: int
    """Keys that stand for a run that another key started."""
    runs: dict[str, int]
    """By state."""
    steps: int
    """Recorded steps that have a body."""
    values: int
    """Recorded `now`, `random` and `uuid4`: they have none."""
    bodies: int
    failed_tries: int
    repeated: int
    in_flight: int
    """Bodies that may be repeated: their worker died, or had them break off, before their record was on disk."""
    recoveries: int
    resume_s: float | None
    """The longest time from a kill, or a stop, until another worker went on with one of the runs in hand."""
    held: dict[str, int]
    """By reason; all were sent on."""
    restarted: int
    violations: dict[str, int]
    """By rule."""


def report_of(script: Script, verdict: Verdict) -> Report:
    """The numbers of a verdict."""
    case = verdict.case
    account, books = case.account, case.books
    runs = Counter(str(run.state) for run in books.runs.values())
    own = sum(run.key in account.started for run in books.runs.values())
    values = sum(len(rows) for body, rows in case.records.items() if is_value(body))
    return Report(
        seed=script.seed,
        seconds=round(verdict.seconds, 1),
        settled_s=round(verdict.settled_s, 1),
        over=case.over,
        faults=dict(Counter(line.fault for line in account.struck).most_common()),
        asked=len(account.asked),
        acknowledged=len(account.started),
        refused=len({line.key for line in account.refused} - account.started.keys()),
        joined=len(account.started) - own,
        runs={str(state): runs[state] for state in RunState if runs[state]},
        steps=sum(map(len, case.records.values())) - values,
        values=values,
        bodies=sum(map(len, account.bodies.values())),
        failed_tries=sum(execution.failed for execution in account.executions),
        repeated=len(case.repeats),
        in_flight=case.in_flight,
        recoveries=sum(run.recoveries for run in books.runs.values()),
        resume_s=worst_resume_s(account),
        held=dict(Counter(line.reason for line in account.held)),
        restarted=verdict.restarted,
        violations=dict(Counter(str(violation.rule) for violation in verdict.violations)),
    )


def document(report: Report, verdict: Verdict) -> dict[str, Any]:
    """The report as JSON, with what was violated and the rows that show it."""
    numbers = {name: getattr(report, name) for name in Report.__slots__}
    found = [
        {"rule": violation.rule.name.lower(), "says": violation.rule, "where": violation.where, "rows": violation.rows}
        for violation in verdict.violations
    ]
    return numbers | {"rules": len(Rule), "found": found}


def worst_resume_s(account: Account) -> float | None:
    """How long the runs of a stricken worker had nobody, at worst."""
    by_pid: dict[int, list[Execution]] = defaultdict(list)
    by_run: dict[int, list[Execution]] = defaultdict(list)
    for execution in sorted(account.executions, key=lambda execution: execution.began.mono):
        by_pid[execution.began.pid].append(execution)
        by_run[execution.began.run].append(execution)
    waits = []
    for line in account.struck:
        if line.fault not in DEADLY or line.victim is None:
            continue
        for execution in in_hand(by_pid[line.victim], line.mono):
            later = by_run[execution.began.run]
            at = bisect_right(later, line.mono, key=lambda execution: execution.began.mono)
            others = (each.began.mono for each in later[at:] if each.began.fence > execution.began.fence)
            waits += [began - line.mono for began in others][:1]
    return round(max(waits), 2) if waits else None


def in_hand(executions: list[Execution], mono: float) -> list[Execution]:
    """Those of a process that had begun and not ended at that moment."""
    return [
        execution
        for execution in executions
        if execution.began.mono < mono and (execution.ended is None or execution.ended.mono > mono)
    ]
