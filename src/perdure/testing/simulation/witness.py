"""The witness: sees every write that the database does, every body that begins and every answer that a client gets,
and says what is wrong with it.

It has a store of its own, on the database's loop, and looks after each write before the next request is served. So what
it compares are neighbours in the one order in which the database did its writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.changes import Change, RequeueRun, RunFilter
from perdure.core.codec import codec_for
from perdure.core.leases import trust_until
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Run, RunState, TakenOver, run_id
from perdure.core.states import TERMINAL
from perdure.runtime.frames import StepFrame
from perdure.store.protocol import Store
from perdure.testing.simulation.invariants import Look, of_claim, of_commit, of_logs, of_rows, of_threads
from perdure.testing.simulation.wire import WRITES, Request
from perdure.testing.simulation.world import Process, World

VIOLATIONS_MAX: Final = 20
"""More of them say nothing new."""

HEARS_S: Final = 1e-6


@dataclass(slots=True)
class Witness:
    """Violations so far, and what it needs to find more."""

    world: World
    store: Store
    lease_s: float
    ahead_us: Any
    """The database's clock."""
    attempts_max: dict[str, int]
    """By step name: tries that its policy allows."""
    violations: list[str] = field(default_factory=list)
    look: Look = field(default_factory=Look)
    history: list[str] = field(default_factory=list)
    bodies: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    """How often the body of a step has begun since its tries were last forgotten."""
    bodies_all: int = 0
    repeated: int = 0
    claims: dict[tuple[int, int], int] = field(default_factory=dict)
    """Run and fence to the worker that was given them."""
    begun: set[tuple[int, int, int, str, int]] = field(default_factory=set)
    asked_at: dict[int, float] = field(default_factory=dict)
    """When each worker asked for the renewal that was granted last."""
    written: set[Change] = field(default_factory=set)
    """What commits have written, each as it was given."""
    told: dict[str, int] = field(default_factory=dict)
    """Start keys to the runs that clients were told of."""

    def blame(self, what: str) -> None:
        """Note a violation."""
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
        self.note(f"{request.caller.process.name}: {_shown(request, answer)}")
        if isinstance(answer, Exception):
            self.blame(f"{request.verb} by {request.caller.process.name} raised {type(answer).__name__}: {answer}")
        before, self.look = self.look, await self._look(request, answer)
        for what in self._violations(request, answer, before):
            self.blame(f"{what} [{request.verb} by {request.caller.process.name}]")
        self._remember(request, answer)

    async def _look(self, request: Request, answer: Any) -> Look:
        before = self.look
        runs = {run.id: run for run in await self.store.list_runs(RunFilter(limit=LIST_ROWS_MAX))}
        workers = {worker.id: worker for worker in await self.store.workers(alive=False)}
        threads = {thread.id: thread for thread in await self.store.list_threads(limit=LIST_ROWS_MAX)}
        logs = dict(before.logs)
        touched = {id for id, run in runs.items() if run != before.runs.get(id)}
        if request.verb == "commit":
            touched |= {change.run for change in request.args[1]} & runs.keys()
        for id in sorted(touched):
            rows = await self.store.checkpoints(id, limit=LIST_ROWS_MAX)
            logs[id] = {(row.super_step, row.key): row for row in rows}
        return Look(runs, workers, threads, logs)

    def _violations(self, request: Request, answer: Any, before: Look) -> Iterable[str]:
        now, verb = self.look, request.verb
        yield from of_rows(verb, before, now)
        yield from of_threads(now)
        for id, log in now.logs.items():
            if log is not before.logs.get(id):
                yield from of_logs(verb, before.logs.get(id, {}), log, now.runs[id], _dropped(request, id))
        if isinstance(answer, Exception):
            return
        if verb == "commit":
            worker, changes = request.args
            yield from of_commit(worker, changes, answer, before, now, self.written)
        if verb == "claim":
            yield from of_claim(request.args[0], answer, before, now, self.ahead_us())

    def _remember(self, request: Request, answer: Any) -> None:
        if isinstance(answer, Exception):
            return
        match request.verb:
            case "claim":
                for claimed in answer:
                    self.claims[claimed.run, claimed.fence] = request.args[0].worker
            case "commit":
                for change in request.args[1]:
                    if isinstance(change, RequeueRun):
                        self._forget_tries(change.run)
            case "retry" | "release":
                self._forget_tries(request.args[0])
            case "retire" | "give_back":
                for id, run in self.look.runs.items():
                    if run.worker is None:
                        self._forget_tries(id)
            case "register" | "renew":
                if answer is not False:
                    worker = request.args[0] if request.verb == "renew" else request.args[0].id
                    self.asked_at[worker] = max(request.sent_at, self.asked_at.get(worker, 0.0))

    def _forget_tries(self, run: int) -> None:
        for key in [key for key in self.bodies if key[0] == run]:
            del self.bodies[key]

    # -- bodies ----------------------------------------------------------------------------------------------

    def body(self, process: Process, at: StepFrame, step: str) -> None:
        """A body is about to begin."""
        claimed, number = at.super_step.claimed, at.super_step.number
        worker = at.super_step.host.worker
        where = f"the body of {at.key!r} of run r{claimed.run}, super-step {number}, try {at.attempt}, fence "\
                f"{claimed.fence}, on w{worker}"  # fmt: skip
        self.note(f"{process.name}: begins {where}")
        self.bodies_all += 1
        record = self.look.logs.get(claimed.run, {}).get((number, at.key))
        if record is not None and record.fence <= claimed.fence:
            self.blame(f"{where}, began though it is on record under fence {record.fence}")
        if self.claims.get((claimed.run, claimed.fence)) != worker:
            self.blame(f"{where}, began under a claim that nobody was given")
        this = (claimed.run, claimed.fence, number, at.key, at.attempt)
        if this in self.begun:
            self.blame(f"{where}, began twice under one claim")
        self.begun.add(this)
        if self.world.now > trust_until(self.asked_at.get(worker, 0.0), self.lease_s) + HEARS_S:
            self.blame(f"{where}, began {self.world.now - self.asked_at.get(worker, 0.0):.3f} s after the last renewal")
        self._count(at, step, where)

    def _count(self, at: StepFrame, step: str, where: str) -> None:
        counted = (at.super_step.claimed.run, at.super_step.number, at.key)
        self.bodies[counted] += 1
        self.repeated += self.bodies[counted] > 1
        if self.bodies[counted] > self.attempts_max[step] + 1:
            self.blame(f"{where}, is the {self.bodies[counted]}th for {self.attempts_max[step]} allowed tries")

    def recorded(self, run: int, super_step: int, key: str) -> None:
        """An agent was let go on by a step that is to be on disk by then."""
        if (super_step, key) not in self.look.logs.get(run, {}):
            self.blame(f"run r{run} went on after step {key!r}, which is not on disk")

    # -- clients ---------------------------------------------------------------------------------------------

    def started(self, key: str, run: int) -> None:
        """A client was told that its run is on disk."""
        self.note(f"a client was told of {run_id(run)} for {key!r}")
        if run not in self.look.runs:
            self.blame(f"a client was told of {run_id(run)}, which is not there")
        if self.told.setdefault(key, run) != run:
            self.blame(f"key {key!r} gave {run_id(self.told[key])} once, and {run_id(run)} now")

    def ended(self, run: int, value: Any, *, failed: bool) -> None:
        """A client was told how its run ended."""
        row = self.look.runs.get(run)
        if row is None or row.state is not (RunState.FAILED if failed else RunState.COMPLETED):
            self.blame(f"a client was told that {run_id(run)} has ended, failed: {failed}; it is {row and row.state}")
        elif not failed and value != self.result(row):
            self.blame(f"a client was told that {run_id(run)} gave {value!r}; on disk is {self.result(row)!r}")

    def result(self, run: Run) -> Any:
        """What the log says a completed run returned."""
        return codec_for(Any).decode(self.look.logs[run.id][run.super_step + 1, ""].payload)

    # -- the end ---------------------------------------------------------------------------------------------

    def unfinished(self) -> list[Run]:
        return [run for run in self.look.runs.values() if run.state not in TERMINAL]


def _dropped(request: Request, run: int) -> set[str]:
    """The keys whose failed records this request may delete."""
    match request.verb:
        case "retry":
            return set(request.args[1]) if request.args[0] == run else set()
        case "commit":
            requeues = [each for each in request.args[1] if isinstance(each, RequeueRun) and each.run == run]
            return {key for each in requeues for key in each.drop_keys}
        case _:
            return set()


def _shown(request: Request, answer: Any) -> str:
    """A request and its answer in a line."""
    match request.verb:
        case "commit":
            kinds = Counter(f"{type(change).__name__} r{change.run}" for change in request.args[1])
            what = ", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in kinds.items())
            said = "" if answer.alive else " (not alive)"
            said += f" lost {sorted(answer.lost)}" if answer.lost else ""
            return f"commit by w{request.args[0]}: {what}{said}"
        case "claim":
            return f"claim by w{request.args[0].worker}: {[f'r{each.run} under {each.fence}' for each in answer]}"
        case "take_over":
            taken: list[TakenOver] = answer
            return f"take_over: {[f'w{each.worker} {each.requeued} {each.held}' for each in taken]}"
        case "start":
            return f"start: {[f'{ask.key or ask.id} on {ask.thread_id}' for ask in request.args[0]]}"
        case "register":
            return f"register w{request.args[0].id} ({request.args[0].deployment})"
        case verb:
            return f"{verb}{request.args} -> {answer if not hasattr(answer, 'state') else answer.state}"
