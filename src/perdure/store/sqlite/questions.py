"""Questions after they were asked: answered once, listed for whoever is to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.records import Interrupt, InterruptState
from perdure.core.requests import Answered, AnswerOutcome, InterruptFilter, NewAnswer, NotAnswered
from perdure.store.pages import page_size
from perdure.store.sqlite import rows
from perdure.store.sqlite.clock import MachineClock, look
from perdure.store.sqlite.transaction import Reader, Transaction, encode
from perdure.store.sqlite.waiters import wake


def answer(tx: Transaction, given: NewAnswer) -> AnswerOutcome | None:
    """Give an open interrupt its answer, and wake its run."""
    found = _get(tx, given.interrupt)
    if found is None:
        return None
    if found.state is InterruptState.ANSWERED and found.answer == given.answer:
        return Answered(found, False)
    if found.state is not InterruptState.OPEN:
        tx.run("expire_interrupt", id=found.id, now=tx.now)
        return NotAnswered(found)
    tx.write("put_blobs", [(found.thread, blob.digest, blob.data) for blob in given.blobs])
    tx.run("answer_interrupt", id=found.id, answer=given.answer, by=given.by, now=tx.now)
    wake(tx, tx.array("waiting_for_answer", interrupt=found.id))
    answered = _get(tx, found.id)
    assert answered is not None
    return Answered(answered, True)


def _get(tx: Transaction, interrupt: int) -> Interrupt | None:
    found = tx.records("get_interrupts", rows.INTERRUPT, ids=encode([interrupt]), now=tx.now)
    return found[0] if found else None


def get_interrupts(reader: Reader, ids: Sequence[int], *, clock: MachineClock) -> list[Interrupt]:
    now = look(reader, clock).now
    return reader.records("get_interrupts", rows.INTERRUPT, ids=encode(list(ids)), now=now)


def interrupts(reader: Reader, where: InterruptFilter, *, clock: MachineClock) -> list[Interrupt]:
    values: dict[str, Any] = {
        "now": look(reader, clock).now,
        "state": where.state,
        "agent": where.agent,
        "assignee": where.assignee,
        "tenant": where.tenant,
        "limit": page_size(where.limit),
        "after": where.after or 0,
    }
    if where.run is not None or where.thread_id is not None:
        place = {"run": where.run, "thread_id": where.thread_id}
        return reader.records("list_run_interrupts", rows.INTERRUPT, **values, **place)
    if where.state is InterruptState.OPEN:
        return reader.records("open_interrupts", rows.INTERRUPT, **values)
    return reader.records("list_interrupts", rows.INTERRUPT, **values)
