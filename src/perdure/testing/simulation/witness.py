"""The witness: sees every write that the database does, every body that begins and every answer that a client gets,
and says what is wrong with it.

It has a store of its own, on the database's loop, and looks after each write before the next request is served. So what
it compares are neighbours in the one order in which the database did its writes. What must hold is in `rules/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.changes import AppendCheckpoint, BeginSuperStep, Change, EndRun, RequeueRun, RunFilter
from perdure.core.codec import codec_for
from perdure.core.leases import trust_until
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Run, RunState, run_id
from perdure.runtime.frames import StepFrame
from perdure.runtime.tenure import Tenure
from perdure.store.protocol import Store
from perdure.testing.simulation.readiness import Readiness
from perdure.testing.simulation.rules.claims import of_claim
from perdure.testing.simulation.rules.commits import of_commit
from perdure.testing.simulation.rules.logs import of_logs
from perdure.testing.simulation.rules.look import Look, Write
from perdure.testing.simulation.rules.operators import is_over, of_operator
from perdure.testing.simulation.rules.runs import of_runs, of_workers
from perdure.testing.simulation.rules.starts import Keys, of_start
from perdure.testing.simulation.rules.takeovers import of_give_back, of_take_over
from perdure.testing.simulation.rules.threads import of_threads
from perdure.testing.simulation.rules.tries import of_tries, step_of
from perdure.testing.simulation.story import shown
from perdure.testing.simulation.wire import WRITES, Request
from perdure.testing.simulation.world import Process, World

VIOLATIONS_MAX: Final = 20
"""More of them say nothing new."""

HEARS_S: Final = 1e-6

ON_WORKERS: Final = frozenset({"register", "renew", "attend", "set_idle", "take_over", "retire"})
ON_RUNS: Final = WRITES - {"register", "renew", "attend", "set_idle"}
ON_THREADS: Final = frozenset({"start", "commit", "retry"})
"""Which rows a verb may touch. Whatever it does to others, a later look finds."""


@dataclass(slots=True)
class Witness:
    """Violations so far, and what it needs to find more."""

    world: World
    store: Store
    lease_s: float
    now_us: Callable[[], int]
    """The database's clock."""
    steps: Mapping[str, int]
    """By step name: tries that its policy allows."""
    agents: Mapping[str, int]
    """The same by agent."""
    violations: list[str] = field(default_factory=list)
    first_at: float | None = None
    """When the first of them was seen."""
    look: Look = field(default_factory=Look)
    history: list[str] = field(default_factory=list)
    readiness: Readiness = field(default_factory=Readiness)
    bodies: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    """How often the body of a step has begun since its tries were last forgotten."""
    bodies_all: int = 0
    repeated: int = 0
    held: list[Run] = field(default_factory=list)
    """Runs that were held, as they were then."""
    claims: dict[tuple[int, int], int] = field(default_factory=dict)
    """Run and fence to the worker that was given them."""
    begun: set[tuple[int, int, int, str, int]] = field(default_factory=set)
    intents: set[tuple[int, int, int, str, int]] = field(default_factory=set)
    """Tries that were on disk ahead of their bodies: run, fence, super-step, key, number."""
    asked_at: dict[int, float] = field(default_factory=dict)
    """When each worker asked for the renewal that was granted last."""
    tickets: dict[int, int] = field(default_factory=dict)
    """Each worker's last give-back."""
    keys: Keys = field(default_factory=dict)
    written: set[Change] = field(default_factory=set)
    """What commits have written, each as it was given."""
    boundaries: list[tuple[int, int]] = field(default_factory=list)
    """Run and super-step of every boundary and every successful end, in the order of their commits."""
    failed: set[int] = field(default_factory=set)
    """Runs that have failed at some time."""
    told: dict[str, int | None] = field(default_factory=dict)
    """Orders to the runs that clients were told of; None where they were refused."""

    def blame(self, what: str) -> None:
        """Note a violation."""
        self.first_at = self.world.now if self.first_at is None else self.first_at
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(f"at {self.world.now:.6f} s: {what}")

    def note(self, what: str) -> None:
        """Note what happened, for whoever reads the story of a seed."""
        self.history.append(f"{self.world.now:10.4f}  {what}")

    # -- the database ----------------------------------------------------------------------------------------

    async def saw(self, request: Request, answer: Any) -> None:
        """The database has done this."""
        if request.verb not in WRITES:
            return
        by = request.caller.process.name
        self.note(f"{by}: {shown(request, answer)}")
        if isinstance(answer, Exception):
            self.blame(f"{request.verb} by {by} raised {type(answer).__name__}: {answer}")
        write = await self._write(request, answer)
        self.look = write.now
        for what in self._violations(write):
            self.blame(f"{what} [{request.verb} by {by}]")
        self._remember(request, write)
        for what in self.readiness.overdue(self.look, self.world.now, write.now_us):
            self.blame(what)

    async def _write(self, request: Request, answer: Any) -> Write:
        before, store, verb = self.look, self.store, request.verb
        now = Look(before.runs, before.workers, before.threads, before.logs, before.tries)
        touched: list[int] = []
        if verb in ON_WORKERS:
            now.workers = {worker.id: worker for worker in await store.workers(alive=False)}
        if verb in ON_THREADS:
            now.threads = {thread.id: thread for thread in await store.list_threads(limit=LIST_ROWS_MAX)}
        if verb in ON_RUNS:
            now.runs = {run.id: run for run in await store.list_runs(RunFilter(limit=LIST_ROWS_MAX))}
            touched = [id for id, run in now.runs.items() if run is not before.runs.get(id)]
            touched = [id for id in touched if now.runs[id] != before.runs.get(id)]
            touched += [change.run for change in request.args[1] if change.run in now.runs] if verb == "commit" else []
            touched = sorted(set(touched))
            await self._look_closer(now, touched)
        write = Write(verb, request.args, request.kwargs, answer, before, now, tuple(touched), self.now_us())
        await self._look_for_blobs(write)
        return write

    async def _look_closer(self, now: Look, touched: list[int]) -> None:
        """The logs and the tries of runs that may differ."""
        if touched:
            now.logs, now.tries = dict(now.logs), dict(now.tries)
        for id in touched:
            rows = await self.store.checkpoints(id, limit=LIST_ROWS_MAX)
            now.logs[id] = {(row.super_step, row.key): row for row in rows}
            now.tries[id] = {(row.super_step, row.key, row.attempt): row for row in await self.store.attempts(id)}

    async def _look_for_blobs(self, write: Write) -> None:
        for change in write.changes:
            if isinstance(change, AppendCheckpoint | BeginSuperStep | EndRun) and change.blobs:
                digests = {blob.digest for blob in change.blobs}
                there = await self.store.blobs(change.thread, sorted(digests))
                write.now.absent[change.run] = write.now.absent.get(change.run, 0) + len(digests) - len(there)

    def _violations(self, write: Write) -> Iterable[str]:
        yield from of_workers(write)
        yield from of_runs(write)
        yield from of_threads(write)
        yield from of_logs(write)
        yield from of_tries(write, self.steps, self.agents)
        yield from of_commit(write, self.written)
        yield from of_claim(write, self.tickets)
        yield from of_start(write, self.keys)
        yield from of_take_over(write)
        yield from of_give_back(write, self.tickets)
        yield from of_operator(write)

    def _remember(self, request: Request, write: Write) -> None:
        for id in write.touched:
            self._remember_run(id, write)
        if not write.done:
            return
        match write.verb:
            case "claim":
                for claimed in write.answer:
                    self.claims[claimed.run, claimed.fence] = write.args[0].worker
            case "retry" | "release":
                self._forget_tries(write.args[0])
            case "give_back" if write.before.alive(write.args[0]):
                ticket = write.kwargs.get("ticket", 0)
                self.tickets[write.args[0]] = max(ticket, self.tickets.get(write.args[0], 0))
            case "register":
                worker = write.args[0].id
                self.readiness.homes[worker] = request.caller.process
                self.asked_at[worker] = max(request.sent_at, self.asked_at.get(worker, 0.0))
            case "renew" if write.answer:
                worker = write.args[0]
                self.asked_at[worker] = max(request.sent_at, self.asked_at.get(worker, 0.0))

    def _remember_run(self, id: int, write: Write) -> None:
        was, run = write.before.runs.get(id), write.now.runs[id]
        if run.state is RunState.FAILED:
            self.failed.add(id)
        if run.state is RunState.HELD and was is not None and was.state is not RunState.HELD:
            self.held.append(run)
        if was is not None and was.worker is not None and run.worker is None and write.verb != "take_over":
            if write.verb != "commit" or any(isinstance(each, RequeueRun) and each.run == id for each in write.changes):
                self._forget_tries(id)
        log = write.now.logs[id]
        for super_step, key in sorted(log.keys() - write.before.logs.get(id, {}).keys()):
            if not key and super_step > 1 and not log[super_step, key].failed:
                self.boundaries.append((id, super_step))
        for at, row in write.now.tries[id].items():
            if row.error is None:
                self.intents.add((id, row.fence, *at))

    def _forget_tries(self, run: int) -> None:
        for key in [key for key in self.bodies if key[0] == run]:
            del self.bodies[key]

    # -- bodies ----------------------------------------------------------------------------------------------

    def body(self, process: Process, at: StepFrame) -> None:
        """A body is about to begin."""
        step = at.super_step
        claimed, number, host = step.claimed, step.number, step.host
        assert isinstance(host, Tenure)
        where = f"the body of {at.key!r} of run r{claimed.run}, super-step {number}, try {at.attempt}, fence "\
                f"{claimed.fence}, on w{host.worker}"  # fmt: skip
        self.note(f"{process.name}: begins {where}")
        self.bodies_all += 1
        if step.ending is not None:
            self.blame(f"{where}, began after its super-step had ended: {step.ending}")
        record = self.look.logs.get(claimed.run, {}).get((number, at.key))
        if record is not None and record.fence <= claimed.fence:
            self.blame(f"{where}, began though it is on record under fence {record.fence}")
        if self.claims.get((claimed.run, claimed.fence)) != host.worker:
            self.blame(f"{where}, began under a claim that nobody was given")
        if len(host.executions) > host.settings.concurrency:
            self.blame(f"{where}, is one of {len(host.executions)} runs in {host.settings.concurrency} slots")
        this = (claimed.run, claimed.fence, number, at.key, at.attempt)
        if this in self.begun:
            self.blame(f"{where}, began twice under one claim")
        self.begun.add(this)
        log = self.look.logs.get(claimed.run, {})
        if (max(1, number - self.world.ahead_max), "") not in log:
            self.blame(f"{where}, began more than {self.world.ahead_max} super-steps ahead of the disk")
        recovered = claimed.recoveries > 0 and number <= claimed.super_step + self.world.ahead_max
        if (at.attempt > 1 or recovered) and this not in self.intents:
            self.blame(f"{where}, began without its intent on disk")
        asked_at = self.asked_at.get(host.worker, 0.0)
        if self.world.now > trust_until(asked_at, self.lease_s) + HEARS_S:
            self.blame(f"{where}, began {self.world.now - asked_at:.3f} s after the last renewal")
        self._count(at, where)

    def _count(self, at: StepFrame, where: str) -> None:
        counted = (at.super_step.claimed.run, at.super_step.number, at.key)
        self.bodies[counted] += 1
        self.repeated += self.bodies[counted] > 1
        allowed = self.steps[step_of(at.key)]
        if self.bodies[counted] > allowed + 1:
            self.blame(f"{where}, is the {self.bodies[counted]}th for {allowed} allowed tries")

    def recorded(self, run: int, super_step: int, key: str) -> None:
        """An agent was let go on by a step that is to be on disk by then."""
        if (super_step, key) not in self.look.logs.get(run, {}):
            self.blame(f"run r{run} went on after step {key!r}, which is not on disk")

    # -- clients ---------------------------------------------------------------------------------------------

    def started(self, name: str, key: str | None, run: int) -> None:
        """A client was told that its run is on disk."""
        self.note(f"a client was told of {run_id(run)} for {name}")
        if run not in self.look.runs:
            self.blame(f"a client was told of {run_id(run)}, which is not there")
        known = self.told.get(name)
        if key is not None and known is not None and known != run:
            self.blame(f"key {key!r} gave {run_id(known)} once, and {run_id(run)} now")
        self.told[name] = run

    def refused(self, name: str, why: Exception) -> None:
        """A client was told that there is no run for it."""
        self.note(f"a client was refused {name}: {why}")
        self.told.setdefault(name, None)

    def ended(self, run: int, value: Any) -> None:
        """A client was told a run's result."""
        row = self.look.runs.get(run)
        if row is None or row.state is not RunState.COMPLETED:
            self.blame(f"a client was told that {run_id(run)} has completed; it is {row and row.state}")
        elif value != self.result(row):
            self.blame(f"a client was told that {run_id(run)} gave {value!r}; on disk is {self.result(row)!r}")

    def is_over(self, run: int) -> bool:
        """Whether nothing more is to come of this run."""
        row = self.look.runs.get(run)
        return row is not None and is_over(self.look, row)

    def result(self, run: Run) -> Any:
        """What the log says a completed run returned."""
        end = self.look.logs.get(run.id, {}).get((run.super_step + 1, ""))
        return "nothing on record" if end is None else codec_for(Any).decode(end.payload)
