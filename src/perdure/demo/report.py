"""What really happened, computed from two witnesses: the store's rows and the side log that the step bodies wrote.

Nothing here trusts what the scene meant to do. A body that ran twice is excused only if the side log says that the
killed process had begun it before the kill, and the store says that this process never got it recorded. Each promise
is a line with its numbers and holds or does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from perdure.core.records import Checkpoint, Kind, Run, RunState, Worker, WorkerState, run_id
from perdure.demo.promise import Promise
from perdure.demo.reconciliation import Accounts
from perdure.demo.sidelog import Body, Mark, What
from perdure.testing.chaos.books import one_writer_after_the_other


@dataclass(frozen=True, slots=True)
class Kill:
    """The moment a worker was killed: on the machine's monotonic clock the signal and the end of the process, and the
    signal on the store's clock. `held` are the runs that were the worker's by the store's rows when it was gone: some
    of their bodies it may not have begun."""

    pid: int
    mono: float
    gone: float
    store_us: int
    held: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Execution:
    """One time that a body ran."""

    body: Body
    pid: int
    begun: float
    ended: float | None
    """None if its process said nothing more."""
    failed: bool = False


@dataclass(frozen=True)
class Evidence:
    """Both witnesses' words. `records` has every run's whole log, `cited` the sources each answer names, by run id."""

    asked: int
    runs: tuple[Run, ...]
    records: Mapping[int, tuple[Checkpoint, ...]]
    workers: tuple[Worker, ...]
    marks: tuple[Mark, ...]
    kill: Kill | None
    cited: Mapping[str, int]
    files: int
    accounts: Accounts | None = None
    """None where nothing was charged. What effects did is theirs to say; here it is about steps."""

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        return tuple(execution for execution in executions(self.marks) if self.is_step(execution.body))

    def is_step(self, body: Body) -> bool:
        return self.accounts is None or not self.accounts.has(body)

    @cached_property
    def steps(self) -> dict[Body, Checkpoint]:
        """The recorded steps, by the name that their bodies use."""
        named = {
            (run_id(record.run), record.super_step, record.key): record
            for records in self.records.values()
            for record in records
            if record.kind is Kind.STEP
        }
        return {body: record for body, record in named.items() if self.is_step(body)}

    @cached_property
    def pids(self) -> dict[int, int]:
        """Each worker's process."""
        return {worker.id: worker.pid for worker in self.workers}

    @cached_property
    def taken_over(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.recoveries > 0)

    @cached_property
    def repeated(self) -> dict[Body, list[Execution]]:
        """The bodies that ran more than once without having failed; failed tries are the retry policy's business."""
        runs: dict[Body, list[Execution]] = defaultdict(list)
        for execution in self.executions:
            if not execution.failed:
                runs[execution.body].append(execution)
        return {body: times for body, times in runs.items() if len(times) > 1}

    @cached_property
    def retried(self) -> int:
        return sum(execution.failed for execution in self.executions)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds from the kill until the death was known, until the last taken-over run did something new, and until the
    last of them had its answer."""

    noticed_s: float | None
    running_s: float | None
    completed_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers, and the promises that they keep or break."""

    promises: tuple[Promise, ...]
    recovery: Recovery
    retried: int

    @property
    def holds(self) -> bool:
        return all(promise.holds for promise in self.promises)


def judge(evidence: Evidence) -> Report:
    """The report on a scene."""
    promises = [answered(evidence), written(evidence)]
    if evidence.kill is None:
        promises.append(Promise(False, "no worker was killed: everything was answered before the moment came"))
    else:
        promises += [recovered(evidence, evidence.kill), repeats(evidence, evidence.kill)]
    promises += [agreement(evidence), fences(evidence)]
    if evidence.accounts is not None:
        promises += evidence.accounts.promises
    return Report(tuple(promises), recovery(evidence), evidence.retried)


def executions(marks: Iterable[Mark]) -> list[Execution]:
    """Every time a body ran, by its begin; `marks` are in the order of time."""
    open_at: dict[tuple[int, Body], float] = {}
    done: list[Execution] = []
    for mark in marks:
        if mark.what is What.BEGIN:
            open_at[mark.pid, mark.body] = mark.mono
        elif mark.what in (What.END, What.FAIL) and (mark.pid, mark.body) in open_at:
            begun = open_at.pop((mark.pid, mark.body))
            done.append(Execution(mark.body, mark.pid, begun, mark.mono, mark.what is What.FAIL))
    done += [Execution(body, pid, begun, None) for (pid, body), begun in open_at.items()]
    return sorted(done, key=lambda execution: execution.begun)


# -- the promises -------------------------------------------------------------------------------------------------


def answered(evidence: Evidence) -> Promise:
    """Each thread has its answer."""
    count = sum(run.state is RunState.COMPLETED for run in evidence.runs)
    others = sorted({run.state.value for run in evidence.runs if run.state is not RunState.COMPLETED})
    text = f"threads answered {count}/{evidence.asked}" + (f" (others: {', '.join(others)})" if others else "")
    return Promise(count == evidence.asked == len(evidence.runs), text)


def written(evidence: Evidence) -> Promise:
    """Each answer is in a file, with its sources."""
    with_sources = sum(count > 0 for count in evidence.cited.values())
    text = f"answers written {evidence.files}/{evidence.asked}, {with_sources} of them with citations"
    return Promise(evidence.files == evidence.asked and with_sources * 10 >= evidence.asked * 9, text)


def recovered(evidence: Evidence, kill: Kill) -> Promise:
    """The killed worker had runs in hand; they were taken over and completed."""
    runs = evidence.taken_over
    ended = sum(run.state is RunState.COMPLETED for run in runs)
    theirs = {mark.run for mark in evidence.marks if mark.pid == kill.pid}
    strangers = sum(run.id not in kill.held and run_id(run.id) not in theirs for run in runs)
    text = f"runs taken over from the killed worker {len(runs)}, of which completed {ended}"
    if strangers:
        text += f"; {strangers} were not the killed worker's"
    return Promise(0 < len(runs) == ended and not strangers, text)


def repeats(evidence: Evidence, kill: Kill) -> Promise:
    """Every body that ran again was in flight at the kill: begun by the killed process, and not recorded by it."""
    running = 0
    late_s: list[float] = []
    for body, times in evidence.repeated.items():
        if excused(evidence, kill, body, times):
            ended = times[0].ended
            if ended is None:
                running += 1
            else:
                late_s.append(max(0.0, kill.mono - ended))
    count, excuses = len(evidence.repeated), running + len(late_s)
    text = f"step bodies executed more than once {count}; in flight at the kill {excuses}/{count}"
    if late_s:
        text += f" ({running} running, {len(late_s)} ended up to {max(late_s) * 1000:.0f} ms before it, unrecorded)"
    return Promise(excuses == count, text)


def excused(evidence: Evidence, kill: Kill, body: Body, times: list[Execution]) -> bool:
    """Once in the killed process and once after it, whose record is the one on disk."""
    if len(times) != 2 or body not in evidence.steps:
        return False
    first, second = times
    recorded_by = evidence.pids.get(evidence.steps[body].worker)
    return first.pid == kill.pid and first.begun <= kill.gone and recorded_by == second.pid != kill.pid


def agreement(evidence: Evidence) -> Promise:
    """The witnesses agree: a record has a body that ended in the process it names, and the bodies of living processes
    have records."""
    ended = {(e.body, e.pid) for e in evidence.executions if e.ended is not None and not e.failed}
    unbacked = sum((body, evidence.pids.get(record.worker)) not in ended for body, record in evidence.steps.items())
    killed = evidence.kill.pid if evidence.kill else None
    unrecorded = sum(pid != killed and body not in evidence.steps for body, pid in ended)
    text = f"steps recorded {len(evidence.steps):,}, bodies begun {len(evidence.executions):,}; store and side log "
    if unbacked or unrecorded:
        return Promise(
            False, text + f"disagree: {unbacked} records without a body, {unrecorded} bodies without a record"
        )
    return Promise(True, text + "agree")


def fences(evidence: Evidence) -> Promise:
    """Along each run's log the fences only grow, one fence is one worker, and no older fence wrote after a newer
    one."""
    broken = sum(not one_writer_after_the_other(records) for records in evidence.records.values())
    highest = max((record.fence for records in evidence.records.values() for record in records), default=0)
    text = f"fences only grew, one worker each (the highest is {highest})"
    return Promise(not broken, text if not broken else f"fences out of order in the logs of {broken} runs")


def recovery(evidence: Evidence) -> Recovery:
    """How long the killed worker's runs were without one."""
    kill = evidence.kill
    if kill is None:
        return Recovery(None, None, None)
    died = [w.ended_at for w in evidence.workers if w.pid == kill.pid and w.state is WorkerState.DEAD and w.ended_at]
    ends = {run_id(run.id): (run.ended_at - kill.store_us) / 1e6 for run in evidence.taken_over if run.ended_at}
    begun = dict(ends)
    for mark in evidence.marks:
        if mark.run in begun and mark.pid != kill.pid and mark.mono > kill.mono:
            begun[mark.run] = min(begun[mark.run], mark.mono - kill.mono)
    return Recovery(
        noticed_s=(died[0] - kill.store_us) / 1e6 if died else None,
        running_s=max(begun.values(), default=None),
        completed_s=max(ends.values(), default=None),
    )
