"""perdure's ownership protocol, as a specification that can be explored.

One run of two steps, the second of which is an effect, and workers that come and go. What is modelled is what
`ARCHITECTURE.md` argues about in "Ownership, and why no interleaving lets two workers write":

- A worker is a row (alive, dead, stopped) with a lease that runs out on the store's clock, and a process that believes
  in it until a time on its own clock. Restarting means a new identity.
- A worker claims the run, resumes at the first thing that the log does not hold, and writes by requests, one at a
  time, in order (`database.py` says what the store does with each).
- Anybody takes over from a worker whose lease has run out, or whose death is believed to be known, rightly or not. A
  paused worker (a zombie) is one that does not move while others do: no move here is ever forced.
- A worker that is told to drain gives its run back and retires. One that is not sure what it owns gives back what it
  does not execute. An operator sends a held run on.

Faults come from a small budget, in any combination and at any moment: crashes, leases that lapse, deaths that are
none, answers that do not come, executions that break off.

In the code today: all of this but the effect's ledger (`effects.py`). Two of its rules are there because this model
asked for them (`give_back_shuts_out_claims`, `ends_compare_again`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perdure.testing.model import database, effects
from perdure.testing.model import state as s
from perdure.testing.model.database import Move, gone, holds_share, idle, send
from perdure.testing.model.explorer import Invariant, Label
from perdure.testing.model.invariants import everything, promised
from perdure.testing.model.rules import Setup
from perdure.testing.model.state import Lock, Row, State, Worker, put
from perdure.testing.model.story import news

FRESH = Worker(s.ALIVE, up=True)
"""A worker that has just started."""
NOT_YET = Worker(s.ABSENT, up=False, trust=False, at=s.GONE)
"""An identity that nobody has yet."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The protocol in one world."""

    setup: Setup
    watch: frozenset[str] | None = None
    """The invariants to test, by name; None: all that are promised in this world."""

    @property
    def invariants(self) -> Sequence[Invariant[State]]:
        """What must hold."""
        if self.watch is None:
            return promised(self.setup)
        return [each for each in everything(self.setup) if each.name in self.watch]

    def initial(self) -> Iterable[State]:
        """A queued run and two idle workers."""
        workers = (FRESH, FRESH, *(NOT_YET,) * (self.setup.identities - 2))
        yield State(workers, self.setup.budget, step=() if self.setup.has_step else (Row(0, 0),))

    def moves(self, state: State) -> Iterator[Move]:
        """Everything that may happen next."""
        setup = self.setup
        if (first := _first(setup, state)) is not None:
            yield from first
            return
        for i, worker in enumerate(state.workers):
            if i == 1 and _nothing_yet(state):
                continue  # the two workers are alike: let the first be the one that begins
            if worker.up:
                yield from _process(setup, state, i, worker)
            yield from _time(setup, state, i, worker)
        yield from database.moves(setup, state)
        yield from _owners(setup, state)
        yield from effects.outside(setup, state)
        if state.run.state == s.HELD and state.left.operator:
            yield from _operator(setup, state)

    def is_good_end(self, state: State) -> bool:
        """The run has ended, or is held and nobody is there to send it on."""
        held = state.run.state == s.HELD and not state.left.operator
        return (held or state.run.state in s.TERMINAL) and state.lock is None

    def describe(self, before: State | None, after: State) -> str:
        """What is new."""
        return news(before, after)


def _nothing_yet(state: State) -> bool:
    """Whether nothing has happened to the run or to either worker."""
    return not state.run.claim and not state.late and state.workers[0] == FRESH == state.workers[1]


def _first(setup: Setup, state: State) -> list[Move] | None:
    """What may go before everything else without hiding an order of events from view.

    A worker that starts changes nothing for others. And what others do between the sending of a request and its arrival
    they could as well have done before it was sent; what may come between is a fault of the sender's own.
    """
    for i, worker in enumerate(state.workers):
        if worker.row == s.ABSENT and _somebody_has_gone(state):
            return [(Label(s.NAMES[i], "starts"), put(state, i, FRESH))]
        if worker.request is not None and worker.request.stage == s.SENT and not setup.statements_apart:
            arrives = list(database.proceed(setup, state, worker.request, i))
            if arrives:
                return [*arrives, *_mishaps(setup, state, i, worker)]
    return None


def _somebody_has_gone(state: State) -> bool:
    return any(worker.row != s.ABSENT and not worker.up for worker in state.workers)


# -- a process ------------------------------------------------------------------------------------------------------


def _process(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """What a worker's process does, or suffers."""
    name = s.NAMES[i]
    if state.run.state not in s.TERMINAL:
        yield from _renews(setup, state, i, worker)
    yield from _mishaps(setup, state, i, worker)
    if worker.request is not None:
        if worker.request.stage == s.BROKEN:
            again = worker._replace(request=worker.request._replace(stage=s.SENT))
            yield Label(name, f"sends its {worker.request.kind} again"), put(state, i, again)
        return
    if worker.at == s.IDLE:
        yield from _looks_for_work(state, i, worker)
    elif worker.at == s.UNSURE:
        if _may_lock(state, i):
            yield Label(name, "gives back what it may own"), state._replace(lock=Lock(s.GIVE_BACK, i))
    elif worker.draining and worker.at in s.HANDS_BACK:
        yield Label(name, "hands its run back"), send(state, i, s.REQUEUE)
    elif worker.at == s.STEP:
        if worker.trust:
            yield Label(name, "begins the step's body"), put(state, i, worker._replace(at=s.IN_STEP))
    elif worker.at == s.IN_STEP:
        yield Label(name, "sends the step's record"), send(state, i, s.RECORD)
    elif worker.at in (s.END, s.FAIL):
        kind = s.ENDING if worker.at == s.END else s.FAILURE
        told = state.told if setup.rules.told_after_commit else database.ENDS[kind]
        yield Label(name, "sends the run's end"), send(state, i, kind)._replace(told=told)
    else:
        yield from effects.inside(setup, state, i, worker)


def _looks_for_work(state: State, i: int, worker: Worker) -> Iterator[Move]:
    """An idle worker claims; a draining one retires."""
    if worker.draining:
        if _may_lock(state, i):
            yield Label(s.NAMES[i], "retires"), state._replace(lock=Lock(s.RETIRE, i))
    elif worker.trust and state.run.state == s.QUEUED:
        yield Label(s.NAMES[i], "asks for runs"), send(state, i, s.CLAIM)


def _renews(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """A renewal extends the lease and the belief in it, or says that the row is not alive any more."""
    name = s.NAMES[i]
    if state.lock is not None and state.lock.worker == i:
        return
    if worker.row == s.ALIVE:
        if worker.expired or not worker.trust:
            yield Label(name, "renews its lease"), put(state, i, worker._replace(expired=False, trust=True))
    elif setup.rules.dead_stays_dead:
        yield Label(name, "hears that it was taken over"), put(_let_go(state, i), i, gone(worker))
    else:
        revived = worker._replace(row=s.ALIVE, expired=False, trust=True)
        yield Label(name, "renews its lease"), put(state, i, revived)


def _mishaps(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """Crashes, orders to drain, lost answers, executions that break off."""
    name, left = s.NAMES[i], state.left
    if state.run.state in s.SETTLED:
        return
    if left.losses:
        spent = state._replace(left=left._replace(losses=left.losses - 1))
        yield Label(name, "crashes", fault=True), put(_let_go(spent, i), i, gone(worker))
        if not worker.draining:
            yield Label(name, "is told to drain", fault=True), put(spent, i, worker._replace(draining=True))
    if not left.glitches or worker.at == s.UNSURE:
        return
    spent = state._replace(left=left._replace(glitches=left.glitches - 1))
    if worker.request is not None and worker.request.stage != s.BROKEN:
        yield Label(name, "loses the connection and the answer", fault=True), _unanswered(setup, spent, i)
    if worker.at != s.IDLE:
        broken = put(_let_go(spent, i), i, idle(worker)._replace(at=_unsure(setup), request=None))
        yield Label(name, "breaks its execution off", fault=True), broken
    if worker.at == s.IN_STEP and worker.request is None and not worker.draining:
        yield Label(name, "is to try again later, and hands back", fault=True), send(spent, i, s.REQUEUE)


def _unsure(setup: Setup) -> str:
    return s.UNSURE if setup.rules.unsure_gives_back else s.IDLE


def _let_go(state: State, i: int) -> State:
    """Nobody waits for this worker's request any more; it may arrive all the same."""
    request = state.workers[i].request
    if request is None or request.stage == s.BROKEN:
        return state
    return state._replace(late=(*state.late, request))


def _unanswered(setup: Setup, state: State, i: int) -> State:
    """The answer does not come: a commit is sent again as it was, after a claim nothing is certain."""
    worker = state.workers[i]
    request = worker.request
    assert request is not None
    state = _let_go(state, i)
    if request.kind == s.CLAIM:
        return put(state, i, idle(worker)._replace(at=_unsure(setup), request=None))
    if not setup.rules.unanswered_is_sent_again:
        return database.succeed(setup, state, i, request)
    return put(state, i, worker._replace(request=request._replace(stage=s.BROKEN, ready=False, seen=None)))


# -- time -----------------------------------------------------------------------------------------------------------


def _time(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """Leases run out, and beliefs in them end."""
    if state.run.state in s.SETTLED:
        return
    name, left = s.NAMES[i], state.left
    paid = state._replace(left=left._replace(losses=left.losses - 1))
    if worker.up and worker.trust:
        lapsed = worker._replace(trust=False)
        if worker.row == s.DEAD:
            if worker.at in s.NEEDS_TRUST or _lease_matters(state, i, worker):
                yield Label(name, "trusts its lease no longer"), put(state, i, lapsed)
        elif left.losses and worker.at != s.IDLE:
            yield Label(name, "trusts its lease no longer", fault=True), put(paid, i, lapsed)
        if left.losses and not worker.expired and not setup.clocks_agree:
            expired = worker._replace(expired=True)
            yield Label("time", f"{name}'s lease runs out while it is trusted", fault=True), put(paid, i, expired)
    elif not worker.expired and _lease_matters(state, i, worker):
        yield Label("time", f"{name}'s lease runs out"), put(state, i, worker._replace(expired=True))


def _lease_matters(state: State, i: int, worker: Worker) -> bool:
    """Whether anything depends on this lease. It runs out in any case; this keeps equal states one. A crashed worker's
    does not matter while its row is alive: whoever takes over knows of the death, or comes later and does the same."""
    if worker.row == s.DEAD:
        return state.effect.status == s.INTENT and state.effect.worker == i
    return worker.row == s.ALIVE and worker.up


def _is_missed(state: State, i: int) -> bool:
    """Whether a process that has gone has left something behind."""
    return state.run.owner == i or any(request.worker == i for request in state.late)


# -- changes of ownership -------------------------------------------------------------------------------------------


def _is_shared(state: State, i: int) -> bool:
    """Whether a commit or a claim holds this worker's row in share mode."""
    if holds_share(state.workers[i].request):
        return True
    return any(request.worker == i and holds_share(request) for request in state.late)


def _may_lock(state: State, i: int) -> bool:
    """Whether this worker's row can be held exclusively now."""
    return state.lock is None and not _is_shared(state, i)


def _owners(setup: Setup, state: State) -> Iterator[Move]:
    """Whoever takes runs from a worker holds its row exclusively, from the first look to the commit."""
    if state.lock is not None:
        yield _change_owner(setup, state, state.lock)
        return
    if state.run.state in s.TERMINAL:
        return
    for i, worker in enumerate(state.workers):
        if worker.row != s.ALIVE or (_is_shared(state, i) and setup.rules.take_over_locks):
            continue
        if not any(other.up and other.row == s.ALIVE for j, other in enumerate(state.workers) if j != i):
            continue
        locked = state._replace(lock=Lock(s.TAKE_OVER, i))
        if worker.expired or (not worker.up and _is_missed(state, i)):
            why = "its lease has run out" if worker.expired else "its death is known"
            yield Label("keeper", f"begins to take over from {s.NAMES[i]}: {why}"), locked
        elif worker.up and state.left.losses:
            paid = locked._replace(left=state.left._replace(losses=state.left.losses - 1))
            yield Label("keeper", f"begins to take over from {s.NAMES[i]}, which it thinks dead", fault=True), paid


def _change_owner(setup: Setup, state: State, lock: Lock) -> Move:
    """The transaction under that lock commits."""
    i, rules = lock.worker, setup.rules
    worker = state.workers[i]
    free = state._replace(lock=None)
    match lock.kind:
        case s.TAKE_OVER:
            dead = put(free, i, worker._replace(row=s.DEAD))
            if not rules.take_over_is_one_transaction:
                return Label("keeper", f"marks {s.NAMES[i]} dead"), dead._replace(lock=Lock(s.REQUEUE_LATER, i))
            return Label("keeper", f"marks {s.NAMES[i]} dead and takes its runs"), _take_over(setup, dead, i)
        case s.REQUEUE_LATER:
            return Label("keeper", f"takes {s.NAMES[i]}'s runs"), _take_over(setup, free, i)
        case s.GIVE_BACK:
            return Label("store", f"gives {s.NAMES[i]}'s runs back"), _give_back(setup, free, i)
        case _:
            stopped = put(free, i, gone(worker)._replace(row=s.STOPPED if worker.row == s.ALIVE else worker.row))
            return Label("store", f"stops {s.NAMES[i]}"), _release(stopped, i)


def _take_over(setup: Setup, state: State, i: int) -> State:
    """Its run is queued again under a higher fence, with a strike unless its claim has recorded something."""
    run, rules = state.run, setup.rules
    if run.owner != i:
        return state
    fence = run.fence + 1 if rules.take_over_raises_fence else run.fence
    strikes = 0 if _has_recorded(setup, state) else run.strikes + 1 if rules.take_over_counts else run.strikes
    held = strikes >= setup.strikes_max
    taken = run._replace(
        state=s.HELD if held else s.QUEUED,
        reason=s.POISON if held else "",
        owner=-1,
        fence=fence,
        strikes=strikes,
        deaths=0 if _got_further(state) else run.deaths + 1,
    )
    return state._replace(run=taken)


def _has_recorded(setup: Setup, state: State) -> bool:
    """Whether the run's present claim has got it further."""
    fence, ledger = state.run.fence, state.effect
    if any(row.fence == fence for row in state.step):
        return True
    counts = ledger.status == s.OUTCOME or not setup.rules.only_records_clear_strikes
    return counts and ledger.fence == fence


def _got_further(state: State) -> bool:
    """The same by claim numbers, for the invariants: no rule can change it."""
    claim, ledger = state.run.claim, state.effect
    return any(row.claim == claim for row in state.step) or (ledger.status == s.OUTCOME and ledger.claim == claim)


def _give_back(setup: Setup, state: State, i: int) -> State:
    """What this worker owns is queued again; of its claims that are still on their way, none will take anything."""
    worker = state.workers[i]
    if worker.row != s.ALIVE:
        return put(state, i, gone(worker))
    state = _release(put(state, i, idle(worker)) if worker.up else state, i)
    if not setup.rules.give_back_shuts_out_claims:
        return state
    return state._replace(late=tuple(each for each in state.late if each.kind != s.CLAIM or each.worker != i))


def _release(state: State, i: int) -> State:
    """Queue what this worker owns, under a higher fence; nothing is counted."""
    run = state.run
    if run.owner != i:
        return state
    return state._replace(run=run._replace(state=s.QUEUED, owner=-1, fence=run.fence + 1))


def _operator(setup: Setup, state: State) -> Iterator[Move]:
    """A person sends a held run on; where an outcome is unknown, by saying what it was."""
    spent = state._replace(left=state.left._replace(operator=state.left.operator - 1))
    fence = state.run.fence if setup.rules.release_keeps_fence else 0
    released = state.run._replace(state=s.QUEUED, reason="", fence=fence, strikes=0, deaths=0)
    if state.run.reason == s.UNSETTLED:
        yield from effects.resolve(setup, spent._replace(run=released))
    else:
        yield Label("operator", "releases the run"), spent._replace(run=released)
