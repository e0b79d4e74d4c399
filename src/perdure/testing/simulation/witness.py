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

from perdure.core.changes import RequeueRun
from perdure.core.codec import codec_for
from perdure.core.deliveries import OPEN, DeliveryState
from perdure.core.effects import EffectState
from perdure.core.leases import trust_until
from perdure.core.records import Run, RunState, run_id
from perdure.core.states import TERMINAL
from perdure.runtime.frames import StepFrame
from perdure.runtime.sinks import Outgoing
from perdure.runtime.tenure import Tenure
from perdure.testing.simulation.events import count
from perdure.testing.simulation.eyes import Eyes
from perdure.testing.simulation.readiness import Readiness
from perdure.testing.simulation.roles import Role
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.budgets import Books, has_reserved, of_budgets
from perdure.testing.simulation.rules.bystanders import of_wakes
from perdure.testing.simulation.rules.cancellations import of_cancel, of_cancelled_runs
from perdure.testing.simulation.rules.claims import of_claim
from perdure.testing.simulation.rules.closings import of_closings
from perdure.testing.simulation.rules.commits import of_commit
from perdure.testing.simulation.rules.dispatches import of_dispatch, of_undo
from perdure.testing.simulation.rules.effects import of_effects
from perdure.testing.simulation.rules.forks import of_fork
from perdure.testing.simulation.rules.logs import of_logs
from perdure.testing.simulation.rules.look import Look, Write
from perdure.testing.simulation.rules.mail import of_mail, of_send
from perdure.testing.simulation.rules.meters import of_meters
from perdure.testing.simulation.rules.operators import is_over, of_operator
from perdure.testing.simulation.rules.outbox import of_outbox
from perdure.testing.simulation.rules.questions import of_answer, of_questions
from perdure.testing.simulation.rules.runs import of_runs, of_workers
from perdure.testing.simulation.rules.starts import of_start
from perdure.testing.simulation.rules.takeovers import of_give_back, of_take_over
from perdure.testing.simulation.rules.threads import of_threads
from perdure.testing.simulation.rules.tries import of_tries, step_of
from perdure.testing.simulation.rules.waits import of_waits
from perdure.testing.simulation.story import shown
from perdure.testing.simulation.wire import WRITES, Fate, Request
from perdure.testing.simulation.world import Process, World

VIOLATIONS_MAX: Final = 20
"""More of them say nothing new."""

HEARS_S: Final = 1e-6


@dataclass(slots=True)
class Witness:
    """Violations so far, and what it needs to find more."""

    world: World
    eyes: Eyes
    lease_s: float
    now_us: Callable[[], int]
    """The database's clock."""
    steps: Mapping[str, int]
    """By step name: tries that its policy allows."""
    roles: Mapping[str, Role]
    """By agent's name."""
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
    annals: Annals = field(default_factory=Annals)
    books: Books = field(default_factory=Books)
    """Of budgets."""
    events: Counter[str] = field(default_factory=Counter)
    """What happened, by its name."""
    failed: set[int] = field(default_factory=set)
    """Runs that have failed at some time."""
    ordered: set[int] = field(default_factory=set)
    """Runs that were started without an order."""
    handing: set[tuple[int, str]] = field(default_factory=set)
    """Workers, and what they are handing over."""
    stale: set[tuple[int, str]] = field(default_factory=set)
    """What workers were made to give back by a claim of their own that came late, and did not know of it."""
    seen: set[str] = field(default_factory=set)
    """Deliveries that their recipients have got."""
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
        write = await self.eyes.look(request, answer, self.look, self.now_us())
        self.look = write.now
        for what in self._violations(write):
            self.blame(f"{what} [{request.verb} by {by}]")
        self._remember(request, write)
        count(self.events, write)
        for what in self.readiness.overdue(self.look, self.world.now, write.now_us):
            self.blame(what)
        for what in self.readiness.undone(self.look, self.annals, self.books, self.world.now, write.now_us):
            self.blame(what)

    def _violations(self, write: Write) -> Iterable[str]:
        annals = self.annals
        yield from of_workers(write)
        yield from of_runs(write)
        yield from of_threads(write, annals)
        yield from of_logs(write, annals)
        yield from of_tries(write, self.steps, self._tries_of)
        yield from of_waits(write)
        yield from of_wakes(write)
        yield from of_questions(write)
        yield from of_effects(write, annals)
        yield from of_cancelled_runs(write)
        yield from of_commit(write, annals)
        yield from of_closings(write, annals, lambda agent: self.roles[agent].withdraws)
        yield from of_claim(write, annals.tickets)
        yield from of_start(write, annals)
        yield from of_take_over(write)
        yield from of_give_back(write, annals.tickets)
        yield from of_operator(write)
        yield from of_cancel(write)
        yield from of_answer(write)
        yield from of_send(write, annals)
        yield from of_mail(write, annals)
        yield from of_fork(write, annals)
        yield from of_outbox(write, annals)
        yield from of_meters(write, annals)
        yield from of_budgets(write, self.books)

    def _tries_of(self, agent: str) -> int:
        """How often an agent is tried as a whole."""
        return self.roles[agent].agent.settings.retry.attempts

    def _remember(self, request: Request, write: Write) -> None:
        for id in write.touched:
            self._remember_run(id, write)
        self.annals.boundaries += [(run, 0) for run in self.annals.taken_back]
        self.annals.taken_back.clear()
        self._remember_effects(write)
        if not write.done:
            return
        match write.verb:
            case "claim":
                for claimed in write.answer:
                    self.claims[claimed.run, claimed.fence] = write.args[0].worker
            case "claim_deliveries" if request.fate is not Fate.WELL:
                worker, kept = write.args[0].worker, write.args[0].keep
                mine = (row.id for row in write.before.deliveries.values() if row.worker == worker)
                self.stale.update((worker, f"d{id}") for id in mine if id not in kept)
            case "retry" | "release":
                self._forget_tries(write.args[0])
            case "give_back" if write.before.alive(write.args[0]):
                ticket = write.kwargs.get("ticket", 0)
                tickets = self.annals.tickets
                tickets[write.args[0]] = max(ticket, tickets.get(write.args[0], 0))
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
        if (run.state in TERMINAL or run.state is RunState.HELD) and run != was:
            self.annals.run_ended(run)
        if run.cancel is not None:
            self.annals.asked_to_end.add(id)
        if was is not None and was.worker is not None and run.worker is None and write.verb != "take_over":
            if write.verb != "commit" or any(isinstance(each, RequeueRun) and each.run == id for each in write.changes):
                self._forget_tries(id)
        log = write.now.logs[id]
        for super_step, key in sorted(log.keys() - write.before.logs.get(id, {}).keys()):
            if not key and super_step > 1 and not log[super_step, key].failed and write.verb != "fork":
                self.annals.boundaries.append((id, super_step))
        for at, row in write.now.tries[id].items():
            if row.error is None:
                self.intents.add((id, row.fence, *at))

    def _remember_effects(self, write: Write) -> None:
        """Of whom a person has said that it did not happen may be tried once more."""
        for id, events in write.now.audits.items():
            new = events[len(write.before.audits.get(id, ())) :]
            row = write.now.effects[id]
            self.bodies[row.run, row.super_step, row.key] -= sum(
                event.state is EffectState.ABSENT and event.by is not None for event in new
            )

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
        self.annals.in_flight.setdefault((claimed.run, claimed.fence), Counter()).update([at.key])
        self.readiness.busy_at[claimed.run] = self.world.now
        if step.ending is not None:
            self.blame(f"{where}, began after its super-step had ended: {step.ending}")
        ahead = at.effect_key is not None or bool(claimed.budgets)  # its intent, or its reservation, may be on disk
        if "turns" in vars(step) and step.turns.interrupts and not ahead:
            self.blame(f"{where}, began though its run is about to be interrupted")
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
        first = min((super_step for super_step, key in log if not key), default=1)
        if (max(first, number - self.world.ahead_max), "") not in log:
            self.blame(f"{where}, began more than {self.world.ahead_max} super-steps ahead of the disk")
        recovered = claimed.recoveries > 0 and number <= claimed.super_step + self.world.ahead_max
        place = claimed.run, number, at.key
        if step.cleaning_up is None and not has_reserved(self.books, self.look, place, claimed.fence):
            self.blame(f"{where}, began, and nothing is reserved for it")
        if at.effect_key is not None:
            row = self.look.effect_at(claimed.run, number, at.key)
            for what in of_dispatch(self.annals, row, claimed.fence, at.attempt):
                self.blame(f"{where}, {what}")
        elif (at.attempt > 1 or recovered) and this not in self.intents:
            self.blame(f"{where}, began without its intent on disk")
        self._trusts(host, where)
        self._count(at, where)

    def undo(self, at: StepFrame) -> None:
        """The undo of an effect is about to begin."""
        claimed, host = at.super_step.claimed, at.super_step.host
        assert isinstance(host, Tenure) and at.effect_key is not None
        where = (
            f"the undo of {at.key!r} of run r{claimed.run}, try {at.attempt}, fence {claimed.fence}, on w{host.worker}"
        )
        self.note(f"begins {where}")
        self.events["undo begun"] += 1
        if at.super_step.ending is not None:
            self.blame(f"{where}, began after its super-step had ended: {at.super_step.ending}")
        key = at.effect_key.removesuffix("-undo")
        row = next((each for each in self.look.effects.values() if each.idempotency_key == key), None)
        for what in of_undo(self.look, self.annals, row, claimed.fence, at.attempt):
            self.blame(f"{where}, {what}")
        self._trusts(host, where)

    def _trusts(self, host: Tenure, where: str) -> None:
        """A body begins only while its worker believes in its lease."""
        asked_at = self.asked_at.get(host.worker, 0.0)
        if self.world.now > trust_until(asked_at, self.lease_s) + HEARS_S:
            self.blame(f"{where}, began {self.world.now - asked_at:.3f} s after the last renewal")

    def body_over(self, at: StepFrame) -> None:
        """A body has returned, or raised."""
        claimed = at.super_step.claimed
        self.annals.in_flight.get((claimed.run, claimed.fence), Counter[str]()).subtract([at.key])

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

    def metered(self, at: StepFrame, name: str, quantity: float) -> None:
        """A body has used something."""
        claimed, number = at.super_step.claimed, at.super_step.number
        place = claimed.run, claimed.fence, number, at.key
        self.annals.metered.setdefault(place, {}).setdefault(at.attempt, []).append((name, quantity))
        if at.effect_key is not None:
            self.annals.of_effects.add(place)

    # -- recipients ------------------------------------------------------------------------------------------

    def handed_over(self, process: Process, item: Outgoing) -> tuple[int, str]:
        """A relay hands this to its sink; by what it is known while it is at that."""
        tenure = None if process.worker is None else process.worker._tenure
        row = self.look.deliveries.get(int(item.id[1:]))
        name = f"{item.id} ({item.key!r} to {item.sink}), try {item.attempt},"
        self.note(f"{process.name}: hands over {name}")
        if row is None or (row.sink, row.key) != (item.sink, item.key):
            self.blame(f"{name} was handed over, and is not in the outbox: {row}")
        elif tenure is not None:
            claimed = row.id, item.attempt, tenure.worker
            self.annals.handed[claimed] -= 1
            if self.annals.handed[claimed] < 0:
                self.blame(f"{name} was handed over by w{tenure.worker}, which was not given that try")
        this = 0 if tenure is None else tenure.worker, item.id
        if this in self.handing and this not in self.stale:
            self.blame(f"{name} was handed over by w{this[0]}, which is still at an earlier try of it")
        self.handing.add(this)
        return this

    def sighted(self, item: Outgoing, *, first: bool) -> None:
        """A recipient has got this. Where it has never had it, it has had all before it in its lane that were not given
        up; unless this comes from a try that is over."""
        self.note(f"{item.sink} has {item.id} ({item.key!r}), try {item.attempt}")
        row = self.look.deliveries.get(int(item.id[1:]))
        if row is None or not first or row.state is not DeliveryState.DELIVERING or row.attempts != item.attempt:
            self.seen.add(item.id)
            return
        for other in self.look.deliveries.values():
            before = (other.sink, other.partition) == (row.sink, row.partition) and other.seq < row.seq
            if before and other.state in OPEN and f"d{other.id}" not in self.seen:
                self.blame(f"{item.sink} has {item.id} before d{other.id}, which came first in {row.partition!r}")
        self.seen.add(item.id)

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

    def told_cancelled(self, run: int) -> None:
        """A client was told that a run was cancelled."""
        if all(row.state is not RunState.CANCELLED for row in self.annals.ends.get(run, ())):
            self.blame(f"a client was told that {run_id(run)} was cancelled; it is {self.look.runs[run].state}")

    def ended(self, run: int, value: Any) -> None:
        """A client was told a run's result."""
        row = self.look.runs.get(run)
        if row is None or row.state is not RunState.COMPLETED:
            self.blame(f"a client was told that {run_id(run)} has completed; it is {row and row.state}")
        elif value != self.result(row):
            self.blame(f"a client was told that {run_id(run)} gave {value!r}; on disk is {self.result(row)!r}")

    def answered(self, interrupt: int, answer: Any) -> None:
        """Somebody was told that this is the answer to a question."""
        row = self.look.interrupts.get(interrupt)
        if row is None or row.answer is None or codec_for(Any).decode(row.answer) != answer:
            self.blame(f"somebody was told that {answer!r} is the answer to i{interrupt}; it is {row and row.answer!r}")

    def mailed(self, message: int) -> None:
        """A sender was told that his message is on disk."""
        if message not in self.annals.sent:
            self.blame(f"somebody was told that message m{message} has arrived; it has not")

    def cancelled(self, run: int, state: RunState) -> None:
        """Somebody who asked a run to end was told how it ends."""
        if state is RunState.CANCELLED:
            true = run in self.annals.asked_to_end
        else:
            true = any(row.state is state for row in self.annals.ends.get(run, ()))
        if not true:
            self.blame(f"somebody was told that {run_id(run)} ends as {state}; it is {self.look.runs[run].state}")

    def forked(self, run: int, source: int, super_step: int, key: str) -> None:
        """Somebody was told of a fork."""
        self.note(f"somebody was told of {run_id(run)}, a fork of {run_id(source)} at {super_step}, {key!r}")
        if run not in self.annals.forks:
            self.blame(f"somebody was told of the fork {run_id(run)}, which is not there")
            return
        before, forked = self.look.logs[source], self.annals.forked_with[run]
        numbers = [row.seq for row in before.values() if (row.super_step, row.key) == (super_step, key)]
        if not key or not numbers:  # it was forked at a boundary, or at a failure that has been forgotten since
            return
        for row in before.values():
            reused = row.super_step == super_step and row.key and row.seq < numbers[0]
            if bool(reused) != ((row.super_step, row.key) in forked) and (row.key or not reused):
                what = "has not reused" if reused else "has reused"
                self.blame(f"{run_id(run)}, a fork of {run_id(source)} before {key!r}, {what} {row.key!r}")

    def is_over(self, run: int) -> bool:
        """Whether nothing more is to come of this run."""
        row = self.look.runs.get(run)
        return row is not None and is_over(self.look, row)

    def result(self, run: Run) -> Any:
        """What the log says a completed run returned."""
        end = self.look.logs.get(run.id, {}).get((run.super_step + 1, ""))
        return "nothing on record" if end is None else codec_for(Any).decode(end.payload)
