"""What a worker does: claim, begin to wait, park, look, close, end; and what it hears.

An execution remembers what it knows of each branch (`minds`), from the claim on; a parked run leaves nothing but rows.
Looking is reading: `Store.waits` and `Store.cancellations`, at any moment at which it would find something new. Hints
play no part in it, as if all were lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.testing.model.explorer import Label
from perdure.testing.model.waiting import readiness
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import State, Transaction, Worker, add, put

Move = tuple[Label, State]


def moves(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """What this worker's process does next, or suffers."""
    yield from mishaps(state, i, worker)
    name = s.NAMES[i]
    if worker.request is not None:
        if worker.unanswered:
            again = worker.request._replace(again=True)
            resent = put(add(state, again), i, worker._replace(unanswered=False))
            yield Label(name, f"sends its {again.kind} again"), resent
    elif worker.at == s.UNWINDING:
        yield Label(name, "has unwound"), put(state, i, idle(worker))
    elif worker.at == s.IDLE:
        if _may_claim(setup, state):
            yield Label(name, "asks for runs"), _send(state._replace(hint=False), i, s.CLAIM)
    elif worker.at == s.EXECUTING:
        yield from _looks(setup, state, i, worker)
        yield from _goes_on(setup, state, i, worker)


def idle(worker: Worker) -> Worker:
    """The worker with nothing in hand."""
    return Worker(worker.row)


def gone(worker: Worker) -> Worker:
    """Its process is no more; its row stays as it is."""
    return Worker(worker.row, at=s.GONE)


def _may_claim(setup: Setup, state: State) -> bool:
    """Whether a claim would find something. (That one finds nothing, and asks again, is no news.)"""
    if state.run.state == s.WAITING and not setup.rules.claim_heeds_times:
        return False
    free = all(s.RUN_ROW not in each.locks for each in state.open)
    return readiness.is_claimable(state) and free and (state.hint or setup.rules.idle_workers_poll)


def _send(state: State, i: int, kind: str, what: tuple[str, ...] = ()) -> State:
    """The state in which this worker has sent that, and waits for the answer."""
    worker = state.workers[i]
    name = s.NAMES[i]
    request = Transaction(kind, name, name, worker.fence, what, worker.knows)
    return put(add(state, request), i, worker._replace(request=request))


# -- what an execution does -------------------------------------------------------------------------------------------


def _goes_on(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """The next thing; what is known goes before what has to be waited for."""
    name = s.NAMES[i]
    minds = dict(zip(setup.waits, worker.minds, strict=True))
    done = [mind == s.DONE for mind in minds.values()]
    over = any(done) if setup.race else all(done)
    if over or (worker.knows and not setup.shielded):
        yield Label(name, "sends the run's end"), _send(state, i, s.END)
        return
    for branch, mind in minds.items():
        if mind in (s.READY, s.DUE):
            yield _closes(setup, state, i, branch, mind)
            return
        if mind == s.NEW:
            kind = s.START if branch == s.CHILD else s.POST
            what = () if kind == s.START else (s.ROOM, "sent")
            yield Label(name, f"sends a {kind}"), _send(state, i, kind, what)
            return
    if worker.awake:
        return
    opens = tuple(branch for branch, mind in minds.items() if mind == s.UNOPENED)
    if opens:
        yield Label(name, f"opens its waits ({', '.join(opens)})"), _send(state, i, s.OPEN_WAITS, opens)
    parks = "opens its waits and parks the run" if opens else "parks the run"
    yield Label(name, parks), _send(state, i, s.PARK, opens)


def _closes(setup: Setup, state: State, i: int, branch: str, mind: str) -> Move:
    """A wait was ready: what has come is read, and recorded, if it is still there."""
    name = s.NAMES[i]
    what = _came(setup, state, branch, mind)
    if what is None:
        return Label(name, f"finds that the {branch} has gone again"), _learns(setup, state, i, branch, s.PENDING)
    return Label(name, f"ends its wait for the {branch}: {what or 'to try again'}"), _send(
        state, i, s.CLOSE, (branch, what)
    )


def _came(setup: Setup, state: State, branch: str, mind: str) -> str | None:
    """What the record is to say; empty for none, None where there is nothing."""
    match branch:
        case s.ANSWER:
            if state.question.state == s.ANSWERED:
                return state.question.answer
            return s.EXPIRED if mind == s.DUE or state.question.state == s.EXPIRED else None
        case s.MESSAGE:
            return state.mail[0] if state.mail else "no message" if mind == s.DUE else None
        case s.CHILD:
            there = state.child.state in (s.ENDED, s.HELD)
            if not setup.rules.reads_before_recording:
                return s.ENDED
            return state.child.state if there else None
        case s.ROOM:
            return ""
        case _:
            return "the time"


def _looks(setup: Setup, state: State, i: int, worker: Worker) -> Iterator[Move]:
    """Reads what its waits are like, and whether it is to be cancelled; where that is news."""
    minds = tuple(
        _seen(state, branch) if mind == s.PENDING and branch in state.waits else mind
        for branch, mind in zip(setup.waits, worker.minds, strict=True)
    )
    knows = state.run.cancel and state.run.owner == i and state.run.fence == worker.fence
    after = worker._replace(minds=minds, knows=worker.knows or knows, awake=False)
    if after != worker:
        yield Label(s.NAMES[i], "looks for what has come"), put(state, i, after)


def _seen(state: State, branch: str) -> str:
    """What `Store.waits` says of an open wait."""
    return s.READY if readiness.has_come(state, branch) else s.DUE if branch in state.due else s.PENDING


def _learns(setup: Setup, state: State, i: int, branch: str, mind: str) -> State:
    worker = state.workers[i]
    at = setup.waits.index(branch)
    return put(state, i, worker._replace(minds=(*worker.minds[:at], mind, *worker.minds[at + 1 :])))


# -- mishaps ----------------------------------------------------------------------------------------------------------


def mishaps(state: State, i: int, worker: Worker) -> Iterator[Move]:
    """Crashes, lost answers, runs that are handed back. Nothing new goes wrong when the run has ended."""
    name, left = s.NAMES[i], state.left
    if state.run.state in s.TERMINAL or worker.at in (s.GONE, s.UNWINDING):
        return
    busy = worker.at == s.EXECUTING or worker.request is not None
    if left.losses and busy:
        spent = let_go(state._replace(left=left._replace(losses=left.losses - 1)), i)
        yield Label(name, "crashes", fault=True), put(spent, i, gone(worker))
    if not left.glitches:
        return
    spent = state._replace(left=left._replace(glitches=left.glitches - 1))
    if worker.request is not None and worker.request.kind == s.START:
        broken_off = put(let_go(spent, i), i, worker._replace(unanswered=False))
        yield Label(name, "breaks off, and hands the run back", fault=True), _send(broken_off, i, s.HAND_BACK)
    if worker.unanswered:
        return
    if worker.request is None and worker.at == s.EXECUTING:
        yield Label(name, "is to hand the run back", fault=True), _send(spent, i, s.HAND_BACK)
    elif worker.request is not None and worker.request.kind != s.CLAIM:
        lost = put(let_go(spent, i), i, worker._replace(unanswered=True))
        yield Label(name, "loses the connection and the answer", fault=True), lost


def let_go(state: State, i: int) -> State:
    """Nobody waits any more for what this worker has sent; it arrives all the same."""
    name = s.NAMES[i]
    return state._replace(open=tuple(sorted(each._replace(to="") if each.to == name else each for each in state.open)))


# -- what it hears ----------------------------------------------------------------------------------------------------


def hear(setup: Setup, state: State, transaction: Transaction, verdict: str) -> State:
    """The worker goes on as one whose request was answered like this."""
    i = s.NAMES.index(transaction.to)
    worker = state.workers[i]._replace(request=None)
    if transaction.again and verdict in (s.AWAKE, s.BOUNCED) and setup.rules.doubt_hands_back:
        return _send(put(state, i, worker), i, s.HAND_BACK)
    match verdict:
        case s.NOT_ALIVE:
            return put(state, i, gone(worker))
        case s.LOST | s.NOTHING:
            return put(state, i, idle(worker))
        case s.REFUSED:
            return put(state, i, _with_opened(setup, worker, transaction)._replace(knows=True))
        case s.AWAKE:
            return put(state, i, _with_opened(setup, worker, transaction)._replace(awake=True))
        case _:
            return _succeeds(setup, put(state, i, worker), i, transaction, bounced=verdict == s.BOUNCED)


def _succeeds(setup: Setup, state: State, i: int, transaction: Transaction, *, bounced: bool) -> State:
    worker = state.workers[i]
    match transaction.kind:
        case s.CLAIM:
            return put(state, i, _claimed(setup, state, worker, transaction))
        case s.OPEN_WAITS:
            return put(state, i, _with_opened(setup, worker, transaction))
        case s.PARK:
            return put(state, i, Worker(worker.row, at=s.UNWINDING) if setup.statements_apart else idle(worker))
        case s.START:
            return _learns(setup, state, i, s.CHILD, s.UNOPENED)
        case s.POST:
            return _learns(setup, state, i, s.ROOM, s.UNOPENED if bounced else s.DONE)
        case s.CLOSE | s.RECORD_LATE:
            branch, what = transaction.what
            if transaction.kind == s.CLOSE and what and not bounced and not setup.rules.close_is_one_commit:
                return _send(state, i, s.RECORD_LATE, transaction.what)
            return _learns(setup, state, i, branch, s.PENDING if bounced else s.DONE if what else s.NEW)
        case _:  # the end, or a hand-back
            return put(state, i, idle(worker))


def _with_opened(setup: Setup, worker: Worker, transaction: Transaction) -> Worker:
    minds = tuple(
        s.PENDING if branch in transaction.what else mind
        for branch, mind in zip(setup.waits, worker.minds, strict=True)
    )
    return worker._replace(minds=minds)


def _claimed(setup: Setup, state: State, worker: Worker, transaction: Transaction) -> Worker:
    """What the log and the waits say of each branch, as the claim has read them."""
    minds = tuple(_resumed(setup, state, branch, transaction.seen) for branch in setup.waits)
    return worker._replace(at=s.EXECUTING, fence=state.run.fence, minds=minds, knows=state.run.cancel)


def _resumed(setup: Setup, state: State, branch: str, seen: tuple[str, ...]) -> str:
    if s.record_of(state, branch) is not None:
        return s.DONE
    if setup.rules.claim_reads_waits_last:
        if branch in state.waits:
            return _seen(state, branch)
    elif f"{branch} open" in seen or f"{branch} ready" in seen:
        return s.READY if f"{branch} ready" in seen else s.PENDING
    if branch == s.ROOM or (branch == s.CHILD and not state.started):
        return s.NEW
    return s.UNOPENED
