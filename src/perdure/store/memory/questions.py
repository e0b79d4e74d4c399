"""Interrupts: questions, their one answer, and how they end without one."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.changes import NewInterrupt, OpenWait
from perdure.core.records import Interrupt, InterruptState, WaitKind
from perdure.core.requests import Answered, AnswerOutcome, InterruptFilter, NewAnswer, NotAnswered
from perdure.store.memory import budgets
from perdure.store.memory.tables import Tables
from perdure.store.pages import page_size

UNANSWERED: Final = frozenset({InterruptState.WITHDRAWN, InterruptState.EXPIRED})
"""Closed without an answer: asked again, the question is open again."""


def ask(tables: Tables, change: OpenWait, expires_at: int | None, *, now: int) -> int:
    """Put the question, or the one that was put under this key before; its id."""
    new, run, at = change.interrupt, tables.runs[change.run], (change.super_step, change.key)
    assert new is not None
    state = InterruptState.OPEN if budgets.stands(tables, new) else InterruptState.WITHDRAWN
    if (before := tables.asked[run.id].get(at)) is not None:
        if tables.interrupts[before].state in UNANSWERED:
            _set(tables, before, state=state, expires_at=expires_at)
            _note_budget(tables, before, new)
        return before
    tables.asked[run.id][at] = new.id
    tables.interrupts[new.id] = Interrupt(
        id=new.id,
        run=run.id,
        thread=run.thread,
        thread_id=run.thread_id,
        agent=run.agent,
        super_step=change.super_step,
        key=change.key,
        name=new.name,
        state=state,
        payload=new.payload,
        schema=new.schema,
        digest=new.digest,
        on_timeout=new.on_timeout,
        assignee=new.assignee,
        tenant=run.tenant,
        created_at=now,
        expires_at=expires_at,
        answer=None,
        answered_by=None,
        answered_at=None,
    )
    _note_budget(tables, new.id, new)
    return new.id


def _note_budget(tables: Tables, interrupt: int, new: NewInterrupt) -> None:
    """Note which budget the question is about, as it was asked last."""
    if new.budget is None:
        tables.accounts.about.pop(interrupt, None)
    else:
        tables.accounts.about[interrupt] = new.budget[0]


def answer(tables: Tables, given: NewAnswer, *, now: int) -> AnswerOutcome | None:
    """The first answer wins, and wakes its run."""
    asked = tables.interrupts.get(given.interrupt)
    if asked is None:
        return None
    if asked.state is InterruptState.ANSWERED and asked.answer == given.answer:
        return Answered(asked, False)
    if asked.state is not InterruptState.OPEN:
        return NotAnswered(asked)
    if _is_due(asked, now):
        return NotAnswered(_set(tables, asked.id, state=InterruptState.EXPIRED))
    words = {"answer": given.answer, "answered_by": given.by, "answered_at": now}
    answered = _set(tables, asked.id, state=InterruptState.ANSWERED, **words)
    tables.put_blobs(asked.thread, given.blobs)
    tables.wake_all(WaitKind.ANSWER, asked.id)
    return Answered(answered, True)


def close(tables: Tables, interrupt: int, state: InterruptState) -> None:
    """End an open question without an answer; any other stays what it is."""
    if tables.interrupts[interrupt].state is InterruptState.OPEN:
        _set(tables, interrupt, state=state)


def oldest_open(tables: Tables, run: int, *, now: int) -> int | None:
    """The oldest open interrupt of a run, if it has one."""
    asked = (seen(tables.interrupts[each], now) for each in tables.asked.get(run, {}).values())
    return min((each.id for each in asked if each.state is InterruptState.OPEN), default=None)


def _set(tables: Tables, interrupt: int, **fields: object) -> Interrupt:
    tables.interrupts[interrupt] = msgspec.structs.replace(tables.interrupts[interrupt], **fields)
    return tables.interrupts[interrupt]


def _is_due(interrupt: Interrupt, now: int) -> bool:
    return interrupt.expires_at is not None and interrupt.expires_at <= now


# -- reading -------------------------------------------------------------------------------------------------


def seen(interrupt: Interrupt, now: int) -> Interrupt:
    """The row as others see it: an open question whose time has come has expired."""
    expired = interrupt.state is InterruptState.OPEN and _is_due(interrupt, now)
    return msgspec.structs.replace(interrupt, state=InterruptState.EXPIRED) if expired else interrupt


def page(tables: Tables, where: InterruptFilter, *, now: int) -> list[Interrupt]:
    """Interrupts, oldest id first."""
    found = (seen(tables.interrupts[each], now) for each in sorted(tables.interrupts))
    return [each for each in found if _matches(each, where)][: page_size(where.limit)]


def _matches(interrupt: Interrupt, where: InterruptFilter) -> bool:
    return (
        (where.after is None or interrupt.id > where.after)
        and (where.state is None or interrupt.state is where.state)
        and (where.agent is None or interrupt.agent == where.agent)
        and (where.thread_id is None or interrupt.thread_id == where.thread_id)
        and (where.run is None or interrupt.run == where.run)
        and (where.assignee is None or interrupt.assignee == where.assignee)
        and (where.tenant is None or interrupt.tenant == where.tenant)
    )
