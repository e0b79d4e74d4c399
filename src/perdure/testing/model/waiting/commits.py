"""What a transaction looks at, what it writes, and what whoever sent it hears.

Each kind of transaction has at most one look and one write here; `plans.py` says which locks come before which.
"""

from __future__ import annotations

from typing import Final

from perdure.testing.model.waiting import execution, plans, readiness
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import Child, Question, Record, State, Transaction, drop, put, put_actor

# -- what a look finds ------------------------------------------------------------------------------------------------

SOMETHING_READY: Final = "something is ready"
CANCEL_ASKED: Final = "the cancellation was requested"
WAITER: Final = "a run waits"
HAS_CHILD: Final = "there is a child"
PARKED: Final = "the run is parked"
TIME_HAS_COME: Final = "the time has come"
BOUNCE: Final = "it does not fit"
KNOWN: Final = "the message is known"

GO_ON: Final = "go on"
"""What a comparison of fences says where nothing stands in the way."""


def look(setup: Setup, state: State, transaction: Transaction, stage: str) -> tuple[str, ...]:
    """What it sees of what is committed now."""
    if stage == plans.PEEK:
        return (PARKED,) if state.run.state == s.WAITING else ()
    if stage == plans.FIND:
        return _find(setup, state)
    what = transaction.what
    match transaction.kind:
        case s.PARK:
            ready = any(readiness.is_ready(state, branch) for branch in _waits_with(state, transaction))
            found = {SOMETHING_READY: ready, CANCEL_ASKED: state.run.cancel}
        case s.END | s.START:
            found = {CANCEL_ASKED: state.run.cancel}
        case s.CLOSE:
            found = {BOUNCE: _bounces(setup, state, what)}
        case s.POST:
            found = {BOUNCE: not state.room}
        case s.GIVE_ANSWER:
            found = {state.question.state: True, TIME_HAS_COME: s.ANSWER in state.due}
        case s.SEND:
            known = what[0] in state.mail or (setup.rules.received_is_known and what[0] in state.received)
            found = {KNOWN: setup.rules.message_is_known and known, WAITER: _waits_parked(state, s.MESSAGE)}
        case s.TAKE:
            found = {WAITER: _waits_parked(state, s.ROOM)}
        case s.CANCEL:
            found = {HAS_CHILD: state.child.state != s.NONE}
        case _:  # the child's end or hold
            found = {WAITER: _is_waiter(setup, state, transaction)}
    return tuple(each for each, is_so in found.items() if is_so)


def _find(setup: Setup, state: State) -> tuple[str, ...]:
    """What a claim sees before it takes the row: where it relies on that, its waits."""
    if setup.rules.claim_reads_waits_last:
        return ()
    return tuple(f"{branch} {'ready' if readiness.is_ready(state, branch) else 'open'}" for branch in state.waits)


def _waits_with(state: State, transaction: Transaction) -> tuple[str, ...]:
    """The waits, with those that this commit opens."""
    return *state.waits, *(branch for branch in transaction.what if branch not in state.waits)


def _waits_parked(state: State, branch: str) -> bool:
    return state.run.state == s.WAITING and branch in state.waits


def _is_waiter(setup: Setup, state: State, transaction: Transaction) -> bool:
    """Whether the child's end counts the run among those that it has to lock."""
    first = transaction.stage == 0
    whatever_its_state = setup.rules.end_locks_waiters and (first or setup.rules.latecomers_are_locked)
    return s.CHILD in state.waits and (whatever_its_state or state.run.state == s.WAITING)


def _bounces(setup: Setup, state: State, what: tuple[str, ...]) -> bool:
    """Whether a wait cannot end with this record."""
    if what == (s.ANSWER, s.EXPIRED):
        return state.question.state == s.ANSWERED and setup.rules.expiry_is_conditional
    return what[1] in s.MESSAGES and what[1] not in state.mail


# -- the guard of a worker's commit -----------------------------------------------------------------------------------


def judge(state: State, transaction: Transaction) -> str:
    """Guarded and repeatable: the two rules for every change."""
    run = state.run
    own = run.fence == transaction.fence
    if run.state == s.RUNNING and own and s.NAMES[run.owner] == transaction.by:
        return s.OK if _is_on_record(state, transaction) else GO_ON
    if transaction.kind == s.START:
        return s.OK if state.child.starter == transaction.fence else s.LOST
    if _is_on_record(state, transaction) or (own and run.state != s.RUNNING):
        return s.OK
    return s.LOST


def _is_on_record(state: State, transaction: Transaction) -> bool:
    """Whether its record is there, under its own fence."""
    if transaction.kind not in (s.CLOSE, s.POST, s.RECORD_LATE):
        return False
    record = s.record_of(state, transaction.what[0])
    return record is not None and record.fence == transaction.fence


# -- writing ----------------------------------------------------------------------------------------------------------


def write(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """The last stage: what it says in a story, and the state after its commit and its answer."""
    verdict, after = _write(setup, state, transaction)
    if transaction.kind in _BY_WORKERS and after != state:
        after = after._replace(stale=state.stale or state.run.fence != transaction.fence)
    return f"{verdict}{_waking(state, after)}", answered(setup, after, transaction, verdict)


def _waking(before: State, after: State) -> str:
    """Whom the commit wakes. In vain is harmless: the run looks, and is parked again."""
    if before.run.state != s.WAITING or after.run.state != s.QUEUED:
        return ""
    to_do = after.run.cancel or any(readiness.is_ready(after, branch) for branch in after.waits)
    return ", and wakes the run" if to_do else ", and wakes the run in vain"


_BY_WORKERS: Final = frozenset({s.OPEN_WAITS, s.PARK, s.CLOSE, s.RECORD_LATE, s.START, s.POST, s.END, s.HAND_BACK})


def _write(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    match transaction.kind:
        case s.CLAIM:
            run = state.run._replace(
                state=s.RUNNING, owner=s.NAMES.index(transaction.by), fence=state.run.fence + 1, times=(), knew=False
            )
            return s.OK, state._replace(run=run)
        case s.OPEN_WAITS:
            return s.OK, _opened(state, transaction)
        case s.PARK:
            return _park(setup, state, transaction)
        case s.CLOSE | s.RECORD_LATE | s.POST:
            return _close(setup, state, transaction)
        case s.START:
            return _start(setup, state, transaction)
        case s.END:
            return _end(setup, state, transaction)
        case s.HAND_BACK:
            return s.OK, state._replace(run=state.run._replace(state=s.QUEUED, owner=-1), hint=True)
        case s.TAKE_OVER:
            return s.OK, _take_over(state, s.NAMES.index(transaction.what[0]))
        case _:
            return _from_outside(setup, state, transaction)


def _opened(state: State, transaction: Transaction) -> State:
    """Its waits are there. Where they were, nothing changes; a question that was withdrawn is open again."""
    new = [branch for branch in transaction.what if s.record_of(state, branch) is None]
    waits = tuple(sorted({*state.waits, *new}))
    asks = s.ANSWER in new and state.question.state in (s.NONE, s.WITHDRAWN)
    question = Question(s.OPEN) if asks else state.question
    started = state.started or s.CHILD in new
    return state._replace(waits=waits, question=question, started=started)


def _park(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    rules, seen = setup.rules, transaction.seen
    state = _opened(state, transaction)
    if CANCEL_ASKED in seen and not transaction.knows and rules.park_heeds_cancel:
        return s.REFUSED, state
    if SOMETHING_READY in seen:
        return s.AWAKE, state
    times = tuple(branch for branch in state.waits if branch in setup.timed) if rules.park_keeps_times else ()
    run = state.run._replace(state=s.WAITING, owner=-1, times=times, knew=transaction.knows)
    return s.OK, state._replace(run=run, waits=state.waits if rules.park_before_unwinding else ())


def _close(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """A wait's end: the record, without the wait, and with what was taken."""
    branch, what = transaction.what[:2]
    rules = setup.rules
    if BOUNCE in transaction.seen:
        return s.BOUNCED, state
    if transaction.kind != s.RECORD_LATE:
        deletes = rules.close_deletes_wait or not what
        waits = tuple(each for each in state.waits if each != branch) if deletes else state.waits
        state = state._replace(waits=waits)
        if branch == s.MESSAGE and what in state.mail:
            left = tuple(each for each in state.mail if each != what)
            state = state._replace(mail=left, received=tuple(sorted((*state.received, what))))
        if (branch, what) == (s.ANSWER, s.EXPIRED):
            state = state._replace(question=state.question._replace(state=s.EXPIRED))
    if transaction.kind == s.POST:
        state = state._replace(room=False)
    if what and (rules.close_is_one_commit or transaction.kind != s.CLOSE):
        state = s.with_record(state, Record(branch, what, transaction.fence))
    return s.OK, state


def _start(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """The child is there, if it was not."""
    if CANCEL_ASKED in transaction.seen and not transaction.knows:
        return s.REFUSED, state
    if state.child.starter == transaction.fence or (state.child.state != s.NONE and setup.rules.start_has_key):
        return s.OK, state
    child = Child(s.ACTIVE, transaction.fence, spared=transaction.knows)
    return s.OK, state._replace(child=child, starts=state.starts + 1)


def _end(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """The run is terminal, its waits are gone, and what it still asked is withdrawn."""
    if CANCEL_ASKED in transaction.seen and not transaction.knows and setup.rules.end_heeds_cancel:
        return s.REFUSED, state
    outcome = s.CANCELLED if transaction.knows else s.COMPLETED
    return s.OK, _closed(state)._replace(run=state.run._replace(state=outcome, owner=-1))


def _closed(state: State) -> State:
    question = state.question
    withdrawn = question._replace(state=s.WITHDRAWN) if question.state == s.OPEN else question
    return state._replace(waits=(), question=withdrawn)


def _take_over(state: State, i: int) -> State:
    """The worker is dead, and what it owned is queued under a higher fence."""
    state = put(state, i, state.workers[i]._replace(row=s.DEAD))
    if state.run.owner != i:
        return state
    run = state.run._replace(state=s.QUEUED, owner=-1, fence=state.run.fence + 1)
    return state._replace(run=run, hint=True)


# -- from outside -----------------------------------------------------------------------------------------------------


def _from_outside(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """Whoever wakes, and what it does apart from that."""
    match transaction.kind:
        case s.GIVE_ANSWER:
            return _answer(setup, state, transaction)
        case s.SEND:
            if KNOWN in transaction.seen:
                return "known already", state
            sent = state._replace(mail=(*state.mail, transaction.what[0]))
            return "sent", _woken(setup, sent, transaction, if_it_waits=True)
        case s.TAKE:
            return "taken", _woken(setup, state._replace(room=True), transaction, if_it_waits=True)
        case s.CANCEL:
            return _cancel(setup, state, transaction)
        case s.CHILD_RELEASED:
            child = state.child
            return "released", state._replace(child=child._replace(state=s.ACTIVE) if child.state == s.HELD else child)
        case _:
            if state.child.state not in (s.ACTIVE, s.HELD):
                return "it has ended already", state
            after = s.ENDED if transaction.kind == s.CHILD_ENDS else s.HELD
            over = state._replace(child=state.child._replace(state=after))
            return after, _woken(setup, over, transaction, if_it_waits=True)


def _answer(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    rules, question, given = setup.rules, state.question, transaction.what[0]
    if question.state == s.ANSWERED and question.answer == given:
        return "answered", state  # it was sent again
    if s.OPEN not in transaction.seen and rules.answer_is_conditional:
        return "not answered", state
    if TIME_HAS_COME in transaction.seen and rules.answer_looks_at_time:
        return "not answered", state._replace(question=question._replace(state=s.EXPIRED))
    overdue = state.overdue or TIME_HAS_COME in transaction.what
    answered = state._replace(question=Question(s.ANSWERED, given), overdue=overdue)
    return "answered", _woken(setup, answered, transaction)


def _cancel(setup: Setup, state: State, transaction: Transaction) -> tuple[str, State]:
    """A request, down the tree; or the end, where nobody has begun."""
    run = state.run
    if run.state in s.TERMINAL or run.cancel:
        return run.state if run.state in s.TERMINAL else "requested", state
    if HAS_CHILD in transaction.seen:
        state = state._replace(child=state.child._replace(cancel=True))
    if run.fence == 0 or run.state == s.HELD:
        return s.CANCELLED, _closed(state)._replace(run=run._replace(state=s.CANCELLED, cancel=True))
    return "requested", _woken(setup, state._replace(run=run._replace(cancel=True)), transaction)


def _woken(setup: Setup, state: State, transaction: Transaction, *, if_it_waits: bool = False) -> State:
    """The run is queued, if it was parked; `if_it_waits`: and if the look has found that it waits for this."""
    rules = setup.rules
    if not rules.waker_wakes_at_once or (if_it_waits and WAITER not in transaction.seen):
        return state
    peeked = plans.PEEK in plans.plan(rules, transaction.kind, (), child_row_first=setup.child_row_first)
    parked = PARKED in transaction.seen if peeked else state.run.state == s.WAITING
    if not parked:
        return state
    return state._replace(run=state.run._replace(state=s.QUEUED, owner=-1, times=()), hint=True)


# -- the answer -------------------------------------------------------------------------------------------------------


def answered(setup: Setup, state: State, transaction: Transaction, verdict: str) -> State:
    """The transaction is over, and whoever waits for it hears how."""
    state = drop(state, transaction)
    if transaction.to in s.NAMES:
        return execution.hear(setup, state, transaction, verdict)
    actor = next((each for each in state.actors if each.name == transaction.to), None)
    return state if actor is None else put_actor(state, actor._replace(at=s.DONE, told=verdict))
