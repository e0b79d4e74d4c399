"""Runs with effects in every state, brought about at a client's desk."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.answers import schema_bytes
from perdure.core.codec import encode
from perdure.core.effects import EffectState, effect_id
from perdure.core.errors import encode_error
from perdure.core.keys import ask_place
from perdure.core.records import Claimed, ErrorInfo, WaitKind
from perdure.core.verdicts import ANSWER_SCHEMA
from perdure.testing.conformance.harness import fail, intend, park, settle, undo, wait
from tests.runtime.desk import Desk

LOST: Final = ErrorInfo("perdure.errors.OutcomeUnknown", "nobody knows", "Traceback …")


async def intended(desk: Desk, thread_id: str = "thread", **fields: Any) -> tuple[int, Claimed, str]:
    """A run with an effect in flight: its worker, its claim and the effect's id. `tenant` and `agent` are the run's."""
    of_run = {name: fields.pop(name) for name in ("agent", "tenant") if name in fields}
    worker, claimed = await desk.bench.begin(thread_id, payload=encode([[], {}]), **of_run)
    arguments = {"arguments": encode([["ann"], {"cents": 5}]), "idempotency_key": "pd-1", "policy": "fail"}
    number = await desk.bench.intended(worker, claimed, "pay", **(arguments | fields))
    return worker, claimed, effect_id(number)


async def unknown(desk: Desk, thread_id: str = "thread", **fields: Any) -> tuple[Claimed, str]:
    """A failed run whose effect nobody knows about."""
    worker, claimed, effect = await intended(desk, thread_id, **fields)
    lost = settle(claimed, int(effect[1:]), EffectState.UNKNOWN, outcome=encode_error(LOST), note="no answer")
    await desk.bench.commit(worker, lost, fail(claimed, encode_error(LOST)))
    return claimed, effect


async def waiting(desk: Desk, thread_id: str = "thread") -> tuple[Claimed, str, str]:
    """A parked run that asks about its effect: the claim, the effect's id and the question's."""
    worker, claimed, effect = await intended(desk, thread_id, policy="ask")
    await desk.bench.commit(worker, settle(claimed, int(effect[1:]), EffectState.UNKNOWN, note="no answer"))
    question = await desk.bench.question("effect:pay", payload=encode("?"), schema=schema_bytes(ANSWER_SCHEMA))
    opened = wait(claimed, ask_place("pay", 1), WaitKind.ANSWER, interrupt=question)
    await desk.bench.commit(worker, opened, park(claimed))
    return claimed, effect, f"i{question.id}"


async def badly_undone(desk: Desk, thread_id: str = "thread", *, ended: bool = True) -> tuple[int, Claimed, str]:
    """A failed run whose effect could not be undone, or one that is still at it."""
    worker, claimed, effect = await intended(desk, thread_id)
    number = int(effect[1:])
    await desk.bench.commit(worker, settle(claimed, number, outcome=encode("ch_1")), undo(claimed))
    await desk.bench.commit(worker, intend(claimed, number, "pay", 1, undo=True))
    await desk.bench.commit(worker, settle(claimed, number, EffectState.UNDO_FAILED, note="the refund is refused"))
    if ended:
        await desk.bench.commit(worker, fail(claimed, encode_error(LOST)))
    return worker, claimed, effect
