"""How transactions go on, one stage at a time, and wait for each other's locks.

A look sees what is committed when it looks. A lock is held until the commit, which writes everything. A transaction
that waits for a row goes on when the row is free. Where some wait for each other in a circle, the database ends one of
them, any, and the store repeats it; another gets its lock.

A transaction outlives the interest in it: its worker may crash, or lose the answer and send again.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.testing.model.explorer import Label
from perdure.testing.model.waiting import commits, plans, readiness
from perdure.testing.model.waiting import state as s
from perdure.testing.model.waiting.rules import Setup
from perdure.testing.model.waiting.state import State, Transaction, add, drop

Move = tuple[Label, State]


def moves(setup: Setup, state: State) -> Iterator[Move]:
    """Every transaction that can go one step further."""
    blocked: list[Transaction] = []
    for transaction in dict.fromkeys(state.open):
        move = proceed(setup, state, transaction)
        if move is None:
            blocked.append(transaction)
        else:
            yield move
    yield from _deadlocks(setup, state, blocked)


def proceed(setup: Setup, state: State, transaction: Transaction) -> Move | None:
    """One stage of one transaction; None while it waits for a lock."""
    stage = _plan(setup, transaction)[transaction.stage]
    label = Label("store", f"{name(transaction)}: {stage}")
    match stage:
        case plans.WRITE:
            verdict, after = commits.write(setup, state, transaction)
            return label._replace(what=f"{name(transaction)}: {verdict}"), after
        case plans.LOOK | plans.PEEK | plans.FIND:
            return _on(setup, state, transaction, label, seen=commits.look(setup, state, transaction, stage))
        case plans.JUDGE:
            verdict = commits.judge(state, transaction)
            if verdict == commits.GO_ON:
                return _and_looks(setup, state, transaction, label)
            told = label._replace(what=f"{name(transaction)}: is answered: {verdict}")
            return told, commits.answered(setup, state, transaction, verdict)
        case _:
            return _lock(setup, state, transaction, stage, label)


def _and_looks(setup: Setup, state: State, transaction: Transaction, label: Label) -> Move:
    """What others do between the comparison and the look they could as well have done before: it would have come out
    the same, under the run's lock."""
    plan = _plan(setup, transaction)
    if setup.statements_apart or plan[transaction.stage + 1] != plans.LOOK:
        return _on(setup, state, transaction, label)
    seen = commits.look(setup, state, transaction, plans.LOOK)
    return _on(setup, state, transaction, label._replace(what=f"{label.what} and looks"), seen=seen, stages=2)


def name(transaction: Transaction) -> str:
    """What stories call it."""
    late = "" if transaction.to else "late: "
    again = ", sent again" if transaction.again else ""
    return f"{late}{transaction.by}'s {transaction.kind}{again}"


def _plan(setup: Setup, transaction: Transaction) -> tuple[str, ...]:
    return plans.plan(setup.rules, transaction.kind, transaction.what, child_row_first=setup.child_row_first)


def _on(
    setup: Setup,
    state: State,
    transaction: Transaction,
    label: Label,
    *,
    seen: tuple[str, ...] = (),
    lock: str = "",
    share: bool = False,
    stages: int = 1,
) -> Move:
    """The transaction one stage further, past those that do not concern it."""
    further = transaction._replace(
        seen=tuple(sorted({*transaction.seen, *seen})),
        locks=tuple(sorted((*transaction.locks, lock))) if lock else transaction.locks,
        share=share or transaction.share,
        stage=transaction.stage + stages,
    )
    plan = _plan(setup, further)
    while not _concerns(setup, state, further, plan[further.stage]):
        further = further._replace(stage=further.stage + 1)
    return label, add(drop(state, transaction), further)


def _concerns(setup: Setup, state: State, transaction: Transaction, stage: str) -> bool:
    """Whether this stage is one for this transaction, by what it has seen."""
    match stage:
        case plans.FIND:
            return setup.statements_apart or not setup.rules.claim_reads_waits_last
        case plans.WAITERS:
            return commits.WAITER in transaction.seen and s.RUN_ROW not in transaction.locks
        case plans.CHILD if transaction.kind == s.CANCEL:
            return commits.HAS_CHILD in transaction.seen
        case plans.BOX if transaction.kind == s.PARK:
            return any(branch in (s.MESSAGE, s.ROOM) for branch in (*state.waits, *transaction.what))
        case plans.RUN if transaction.kind == s.TAKE_OVER:
            return state.run.owner == s.NAMES.index(transaction.what[0])
        case _:
            return True


# -- locks ------------------------------------------------------------------------------------------------------------


def _lock(setup: Setup, state: State, transaction: Transaction, stage: str, label: Label) -> Move | None:
    if _in_the_way(setup, state, transaction):
        if stage != plans.SKIP:
            return None
        passed = label._replace(what=f"{name(transaction)}: passes over the run's row, which is locked")
        return passed, commits.answered(setup, state, transaction, s.NOTHING)
    match stage:
        case plans.SHARE:
            if state.workers[s.NAMES.index(transaction.by)].row != s.ALIVE:
                told = label._replace(what=f"{name(transaction)}: finds its worker not alive")
                return told, commits.answered(setup, state, transaction, s.NOT_ALIVE)
            return _on(setup, state, transaction, label, share=True)
        case plans.ALONE:
            return _on(setup, state, transaction, label, lock=transaction.what[0])
        case plans.SKIP:
            if not readiness.is_claimable(state):
                told = label._replace(what=f"{name(transaction)}: finds nothing")
                return told, commits.answered(setup, state, transaction, s.NOTHING)
            return _on(setup, state, transaction, label, lock=s.RUN_ROW)
        case _:
            return _on(setup, state, transaction, label, lock=plans.LOCKS[stage])


def _in_the_way(setup: Setup, state: State, transaction: Transaction) -> list[Transaction]:
    """Those that hold what the next stage of this one wants."""
    stage = _plan(setup, transaction)[transaction.stage]
    others = [each for each in state.open if each is not transaction]
    match stage:
        case plans.SHARE | plans.ALONE:
            worker = transaction.by if stage == plans.SHARE else transaction.what[0]
            alone = stage == plans.ALONE
            return [each for each in others if worker in each.locks or (alone and each.share and each.by == worker)]
        case plans.SKIP:
            return [each for each in others if s.RUN_ROW in each.locks]
        case _:
            row = plans.LOCKS.get(stage, "")
            return [each for each in others if row in each.locks]


def _deadlocks(setup: Setup, state: State, blocked: list[Transaction]) -> Iterator[Move]:
    """Where some wait for each other in a circle, one is ended and repeated, and the one that waited for it goes on."""
    waits_for = {each: [other for other in _in_the_way(setup, state, each) if other in blocked] for each in blocked}
    for victim in blocked:
        circle = _reached(waits_for, victim)
        if victim not in circle:
            continue
        freed = add(drop(state, victim), victim._replace(stage=0, share=False, locks=(), seen=()))
        for other in circle:
            if victim in waits_for[other] and (move := proceed(setup, freed, other)) is not None:
                yield Label("store", f"{name(victim)}: ends in a deadlock with {name(other)}, and is repeated"), move[1]


def _reached(waits_for: dict[Transaction, list[Transaction]], start: Transaction) -> list[Transaction]:
    """Those that this one waits for, and those that they wait for, and so on."""
    reached: dict[Transaction, None] = {}
    left = list(waits_for[start])
    while left:
        at = left.pop()
        if at not in reached:
            reached[at] = None
            left += waits_for[at]
    return list(reached)
