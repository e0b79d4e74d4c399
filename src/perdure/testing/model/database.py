"""What the database does with a request: lock, look, write, answer; each a step that others may come between.

A commit on Postgres is three statements. It locks its worker's row in share mode and sees it alive; in a later
snapshot it compares the run's row with the fence it carries; then it writes and commits. A claim locks in the same way,
then takes the run, and reads the log in a later snapshot. Between two of these steps anything else may happen that the
locks allow: another worker's commit, a renewal, a take-over of somebody else. (SQLite runs a write transaction in one
piece: its interleavings are some of these.)

A request outlives the interest in it. Its worker may crash, or give up waiting for the answer and send again; what is
on its way then is *late*, and arrives some time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.testing.model import state as s
from perdure.testing.model.explorer import Label
from perdure.testing.model.rules import Setup
from perdure.testing.model.state import Ledger, Request, Row, State, Worker, put

Move = tuple[Label, State]

WRITE: Final = "write"
DONE: Final = "done"
"""It is on record already: this is the same request again."""
LOST: Final = "lost"
"""The run has moved on to another claim."""
NOT_ALIVE: Final = "not alive"

AFTER: Final = {
    s.RECORD: s.EFFECT,
    s.INTENT: s.INTENDED,
    s.OUTCOME_UNKNOWN: s.UNKNOWN,
    s.NOT_DONE: s.EFFECT,
    s.OUTCOME: s.END,
    s.ENDING: s.IDLE,
    s.FAILURE: s.IDLE,
    s.REQUEUE: s.IDLE,
    s.HOLD: s.IDLE,
}
"""Where a worker goes on when its request has succeeded."""

ENDS: Final = {s.ENDING: s.COMPLETED, s.FAILURE: s.FAILED, s.REQUEUE: s.QUEUED, s.HOLD: s.HELD}
"""What a request that ends a slice makes of the run."""


def moves(setup: Setup, state: State) -> Iterator[Move]:
    """Every request that can go one step further."""
    for i, worker in enumerate(state.workers):
        if worker.request is not None:
            yield from proceed(setup, state, worker.request, i)
    for late in state.late:
        yield from proceed(setup, state, late, -1)


def holds_share(request: Request | None) -> bool:
    """Whether the request keeps an exclusive lock on its worker's row away."""
    return request is not None and request.stage in (s.LOCKED, s.CHECKED)


def proceed(setup: Setup, state: State, request: Request, waiting: int) -> Iterator[Move]:
    """One step of one request. `waiting` is the worker that waits for its answer, or -1."""
    if request.stage == s.BROKEN:
        return
    step = _claim if request.kind == s.CLAIM else _commit
    done = step(setup, state, request, waiting)
    if done is not None:
        what, after = done
        yield (
            Label("store", f"{'late: ' if waiting < 0 else ''}{s.NAMES[request.worker]}'s {request.kind}: {what}"),
            after,
        )


def send(state: State, i: int, kind: str) -> State:
    """The state in which this worker has sent that request, and waits."""
    worker = state.workers[i]
    version = worker.version + 1 if kind in s.LEDGER else 0
    request = Request(kind, i, worker.fence, worker.claim, version)
    return put(state, i, worker._replace(request=request))


# -- a commit -------------------------------------------------------------------------------------------------------


def _commit(setup: Setup, state: State, request: Request, waiting: int) -> tuple[str, State] | None:
    rules = setup.rules
    if request.stage == s.SENT and not rules.check_follows_lock:
        ready = _judge(setup, state, request) == WRITE
        return "reads the fence", _on(state, request, waiting, stage=s.LOOKED, ready=ready)
    if request.stage in (s.SENT, s.LOOKED):
        if not _can_lock(setup, state, request):
            return None
        if rules.commit_looks_at_its_row and state.workers[request.worker].row != s.ALIVE:
            return "finds its worker not alive", _answer(setup, state, request, waiting, NOT_ALIVE)
        if request.stage == s.LOOKED and request.ready:
            return "locks its worker's row", _on(state, request, waiting, stage=s.CHECKED)
        if setup.statements_apart:
            return "locks its worker's row", _on(state, request, waiting, stage=s.LOCKED)
    if request.stage != s.CHECKED:
        verdict = _judge(setup, state, request)
        if verdict == WRITE:
            return "finds its fence current", _on(state, request, waiting, stage=s.CHECKED)
        return f"is answered: {verdict}", _answer(setup, state, request, waiting, verdict)
    if _is_late_copy(setup, state, request):
        return "finds its work done", _answer(setup, state, request, waiting, DONE)
    return "is written", _answer(setup, _write(setup, state, request), request, waiting, DONE)


def _judge(setup: Setup, state: State, request: Request) -> str:
    """Guarded and repeatable: the two rules for every change."""
    rules, run = setup.rules, state.run
    on_ledger = request.kind in s.LEDGER
    if on_ledger and not rules.ledger_compares_fences:
        return WRITE
    current = run.fence == request.fence or not rules.commit_compares_fences
    own = _is_own_work(setup, state, request)
    if not (run.state == s.RUNNING and run.owner == request.worker and current):
        ended = run.state != s.RUNNING and run.fence == request.fence
        return DONE if (own or ended) and rules.own_work_is_success else LOST
    if own and rules.own_work_is_not_repeated:
        return DONE if rules.own_work_is_success else LOST
    if request.kind == s.RECORD and state.step and not own:
        return LOST
    return WRITE


def _is_late_copy(setup: Setup, state: State, request: Request) -> bool:
    """Whether another copy of the request was written since this one looked. A record meets its key, a write to the
    ledger its number; what ends a slice has neither, and compares the run's row again."""
    if request.kind in ENDS:
        return setup.rules.ends_compare_again and _judge(setup, state, request) != WRITE
    if request.kind in s.LEDGER and setup.rules.ledger_is_numbered:
        return state.effect.version >= request.version
    return setup.rules.own_work_is_not_repeated and _is_own_work(setup, state, request)


def may_write(setup: Setup, state: State, request: Request) -> bool:
    """Whether the request, as far as it has come, would be written if nothing came between."""
    alive = state.workers[request.worker].row == s.ALIVE or not setup.rules.commit_looks_at_its_row
    match request.stage:
        case s.CHECKED:
            return not _is_late_copy(setup, state, request)
        case s.LOOKED:
            return alive and request.ready
        case _:
            return alive and _judge(setup, state, request) == WRITE


def _is_own_work(setup: Setup, state: State, request: Request) -> bool:
    """Whether the log holds it already, under this fence."""
    if request.kind == s.RECORD:
        return any(row.fence == request.fence for row in state.step)
    ledger = state.effect
    if request.kind not in s.LEDGER or ledger.fence != request.fence:
        return False
    if setup.rules.ledger_is_numbered:
        return ledger.version >= request.version
    return ledger.status == request.kind


def _write(setup: Setup, state: State, request: Request) -> State:
    kind, run = request.kind, state.run
    state = state._replace(stale=request.claim != run.claim)
    if kind in ENDS:
        reason = s.UNSETTLED if kind == s.HOLD else ""
        return state._replace(run=run._replace(state=ENDS[kind], reason=reason, owner=-1))
    if kind == s.RECORD:
        rows = (*state.step, Row(request.fence, request.claim))
        return state._replace(step=rows, run=run._replace(deaths=0))
    ledger = Ledger(kind, request.worker, request.fence, request.claim, request.version)
    state = state._replace(effect=ledger)
    if kind == s.OUTCOME:
        return state._replace(run=run._replace(deaths=0))
    if kind == s.OUTCOME_UNKNOWN:
        return state._replace(provider=state.provider._replace(dispatched=0))
    return state


# -- a claim --------------------------------------------------------------------------------------------------------


def _claim(setup: Setup, state: State, request: Request, waiting: int) -> tuple[str, State] | None:
    rules = setup.rules
    if request.stage == s.SENT and not rules.claim_reads_log_last:
        return "takes its snapshot", _on(state, request, waiting, stage=s.LOOKED, seen=(state.step, state.effect))
    if request.stage in (s.SENT, s.LOOKED) and not request.ready:
        if not _can_lock(setup, state, request):
            return None
        if rules.claim_looks_at_its_row and state.workers[request.worker].row != s.ALIVE:
            return "finds its worker not alive", _answer(setup, state, request, waiting, NOT_ALIVE)
        if not rules.claim_holds_its_row:
            return "sees its worker alive", _on(state, request, waiting, stage=s.LOOKED, ready=True)
        if setup.statements_apart:
            return "locks its worker's row", _on(state, request, waiting, stage=s.LOCKED)
    run = state.run
    if not (run.state == s.QUEUED or (run.state in s.TERMINAL and not rules.terminal_is_left_alone)):
        return "finds nothing", _answer(setup, state, request, waiting, LOST)
    fence = run.fence + 1 if rules.claim_raises_fence else run.fence
    taken = run._replace(state=s.RUNNING, owner=request.worker, fence=fence, claim=run.claim + 1)
    return "takes the run", _launch(setup, state._replace(run=taken), request, waiting)


def _launch(setup: Setup, state: State, request: Request, waiting: int) -> State:
    """The claim is answered: its worker goes to the first thing that the log does not hold."""
    state = _on(state, request, waiting, gone=True)
    if waiting < 0:
        return state
    step, ledger = request.seen if request.seen is not None else (state.step, state.effect)
    worker = state.workers[waiting]._replace(
        at=resume_at(setup, step, ledger), fence=state.run.fence, claim=state.run.claim, version=ledger.version
    )
    return put(state, waiting, worker)


def resume_at(setup: Setup, step: tuple[Row, ...], ledger: Ledger) -> str:
    """Where an execution with that log begins to do something new."""
    if not step:
        return s.STEP
    if not setup.has_effect:
        return s.END
    match ledger.status:
        case s.INTENT:
            return s.FOUND
        case s.OUTCOME_UNKNOWN:
            return s.UNKNOWN
        case s.OUTCOME:
            return s.END
        case _:
            return s.EFFECT


# -- locks and answers ----------------------------------------------------------------------------------------------


def _can_lock(setup: Setup, state: State, request: Request) -> bool:
    """Whether nobody holds the worker's row exclusively."""
    lock = state.lock
    if lock is None or lock.worker != request.worker:
        return True
    return lock.kind == s.TAKE_OVER and not setup.rules.take_over_locks


def _on(
    state: State,
    request: Request,
    waiting: int,
    *,
    stage: str = s.SENT,
    ready: bool | None = None,
    seen: tuple[tuple[Row, ...], Ledger] | None = None,
    gone: bool = False,
) -> State:
    """The state with the request one step further, or gone."""
    ready = request.ready if ready is None else ready
    further = None if gone else request._replace(stage=stage, ready=ready, seen=seen or request.seen)
    if waiting >= 0:
        return put(state, waiting, state.workers[waiting]._replace(request=further))
    place = state.late.index(request)
    kept = (*state.late[:place], *state.late[place + 1 :])
    return state._replace(late=kept if further is None else (*kept, further))


def _answer(setup: Setup, state: State, request: Request, waiting: int, verdict: str) -> State:
    """The request is over, and whoever waits for it hears how it ended."""
    state = _on(state, request, waiting, gone=True)
    if waiting < 0:
        return state
    worker = state.workers[waiting]
    if verdict == NOT_ALIVE:
        return put(state, waiting, gone(worker))
    if verdict == LOST:
        return put(state, waiting, idle(worker))
    return succeed(setup, state, waiting, request)


def succeed(setup: Setup, state: State, waiting: int, request: Request) -> State:
    """The worker goes on as one whose request has succeeded."""
    worker = state.workers[waiting]._replace(request=None)
    after = s.END if request.kind == s.RECORD and not setup.has_effect else AFTER[request.kind]
    if request.kind in (s.ENDING, s.FAILURE):
        state = state._replace(told=ENDS[request.kind])
    if after == s.IDLE:
        return put(state, waiting, idle(worker))
    version = request.version if request.kind in s.LEDGER else worker.version
    return put(state, waiting, worker._replace(at=after, version=version))


def idle(worker: Worker) -> Worker:
    """The worker with nothing in hand."""
    return worker._replace(at=s.IDLE, fence=0, claim=0, version=0)


def gone(worker: Worker) -> Worker:
    """The process, or at least this identity of it, is no more; its row stays as it is."""
    return Worker(worker.row, up=False, expired=worker.expired, trust=False, at=s.GONE)
