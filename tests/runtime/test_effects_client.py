"""The ledger as the client shows it, and what a person may say of an effect."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import Any

import pytest

import perdure
from perdure import AlreadyAnswered, Conflict, EffectInfo, NotFound, NotSerializable, UsageError
from perdure.core.answers import canonical_bytes
from perdure.core.codec import encode
from perdure.core.effects import EffectState
from perdure.core.errors import encode_error
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import Claimed, RunState, run_id
from perdure.core.snapshot import spill
from perdure.runtime.info import moment
from perdure.testing.conformance.harness import end, fail, hold, requeue, settle, step
from tests.runtime.desk import Desk, at_a_desk
from tests.runtime.ledger import LOST, badly_undone, intended, unknown, waiting

UNKNOWN, DONE, ABSENT = EffectState.UNKNOWN, EffectState.DONE, EffectState.ABSENT
UNDO_FAILED, UNDONE = EffectState.UNDO_FAILED, EffectState.UNDONE


@dataclass
class Receipt:
    """A result with a type of its own."""

    id: str
    cents: int = 0


@perdure.effect
async def declared(cents: int) -> Receipt:
    """An effect that this process knows."""
    return Receipt("ch_1", cents)


# -- reading --------------------------------------------------------------------------------------------------------


@at_a_desk
async def test_an_effect_is_shown_with_its_arguments_its_outcome_and_its_audit(desk: Desk) -> None:
    worker, claimed, effect = await intended(desk, tenant="acme")
    await desk.bench.commit(worker, settle(claimed, int(effect[1:]), outcome=encode({"id": "ch_1"}), note="looked"))

    info = await desk.app.effect_info(effect)

    assert (info.id, info.run_id, info.thread_id, info.agent) == (effect, run_id(claimed.run), "thread", "agent")
    assert (info.name, info.key, info.super_step, info.state) == ("pay", "pay", 1, DONE)
    assert info.arguments == {"args": ["ann"], "kwargs": {"cents": 5}}
    assert (info.result, info.error, info.note, info.by) == ({"id": "ch_1"}, None, "looked", None)
    assert (info.idempotency_key, info.policy, info.undoable, info.tenant) == ("pd-1", "fail", True, "acme")
    assert (info.attempt, info.undo_attempt, info.worker) == (1, 0, f"w{worker}")
    assert info.settled_at is not None and info.intended_at.tzinfo is UTC
    assert [(event.state, event.attempt, event.worker, event.by, event.note) for event in info.events] == [
        (EffectState.INTENDED, 1, f"w{worker}", None, None),
        (DONE, 1, f"w{worker}", None, "looked"),
    ]


@at_a_desk
async def test_an_intent_whose_worker_is_gone_is_shown_as_unknown(desk: Desk) -> None:
    worker, _, effect = await intended(desk)
    assert (await desk.app.effect_info(effect)).state is EffectState.INTENDED

    await desk.bench.die(worker)

    info = await desk.app.effect_info(effect)
    assert (info.state, info.result, info.error) == (UNKNOWN, None, None)
    assert [event.state for event in info.events] == [EffectState.INTENDED]
    assert [row.id for row in await desk.app.effects(state="unknown")] == [effect]


@at_a_desk
async def test_what_went_wrong_is_shown_as_an_error(desk: Desk) -> None:
    _, effect = await unknown(desk)

    info = await desk.app.effect_info(effect)

    assert (info.result, info.error, info.note) == (None, LOST, "no answer")


@at_a_desk
async def test_large_arguments_and_results_are_shown_whole(desk: Desk) -> None:
    large = "x" * (2 * INLINE_BYTES_MAX)
    arguments, argument_blobs = spill(encode([[large], {}]))
    outcome, blobs = spill(encode([large]))
    worker, claimed, effect = await intended(desk, arguments=arguments, blobs=argument_blobs)
    await desk.bench.commit(worker, settle(claimed, int(effect[1:]), outcome=outcome, blobs=blobs))

    info = await desk.app.effect_info(effect)

    assert (info.arguments, info.result) == ([large], [large])


@at_a_desk
async def test_the_ledger_can_be_searched(desk: Desk) -> None:
    claimed, one = await unknown(desk, "one", tenant="acme")
    worker, _, two = await intended(desk, "two", agent="stateless", name="mail", undoable=False)
    find = desk.app.effects

    assert [info.id for info in await find()] == [one, two]
    assert [info.id for info in await find(state="unknown")] == [one]
    assert [info.id for info in await find(state="intended")] == [two]
    assert [info.id for info in await find(run_id=run_id(claimed.run))] == [one]
    assert [info.id for info in await find(thread_id="two")] == [two]
    assert [info.id for info in await find(agent="stateless")] == [two]
    assert [info.id for info in await find(agent=desk.app.agents["stateless"])] == [two]
    assert [info.id for info in await find(name="mail")] == [two]
    assert [info.id for info in await find(tenant="acme")] == [one]
    assert [info.id for info in await find(undoable=True)] == [one]
    assert [info.id for info in await find(undoable=False)] == [two]
    assert [info.id for info in await find(limit=1)] == [one]
    assert [info.id for info in await find(limit=1, after=one)] == [two]
    assert all(info.events == () for info in await find())
    await desk.bench.die(worker)


@at_a_desk
async def test_what_no_effect_can_be_is_refused_with_the_remedy(desk: Desk) -> None:
    for wrong, said in (
        (desk.app.effects(state="open"), "they are: intended"),
        (desk.app.effects(undoable="yes"), "undoable"),  # type: ignore[arg-type]
        (desk.app.effects(run_id="e1"), "r42"),
        (desk.app.effects(limit=0), "limit"),
        (desk.app.effects(after="r1"), "e42"),
        (desk.app.effects(name=""), "name"),
        (desk.app.effect_info("r1"), "e42"),
        (desk.app.resolve_effect("e1"), "neither was given"),
        (desk.app.resolve_effect("e1", happened=True, undone=True), "both were given"),
        (desk.app.resolve_effect("e1", happened="no"), "happened=True"),  # type: ignore[arg-type]
        (desk.app.resolve_effect("e1", happened=False, result=1), "has no result"),
        (desk.app.resolve_effect("e1", undone=True, result=1), "has no result"),
        (desk.app.resolve_effect("e1", happened=True, note=" "), "note"),
        (desk.app.resolve_effect("e1", happened=True, by=""), "by"),
    ):
        with pytest.raises(UsageError, match=said):
            await wrong
    with pytest.raises(NotSerializable):
        await desk.app.resolve_effect("e1", happened=True, result=object())


@at_a_desk
async def test_an_effect_that_is_not_there_is_not_found(desk: Desk) -> None:
    with pytest.raises(NotFound, match="effects list"):
        await desk.app.effect_info("e999")
    with pytest.raises(NotFound, match="effects list"):
        await desk.app.resolve_effect("e999", happened=False)


# -- where the run has ended, or is held ----------------------------------------------------------------------------


@at_a_desk
async def test_what_a_person_has_found_out_is_in_the_ledger_with_the_name(desk: Desk) -> None:
    _, effect = await unknown(desk)

    info = await desk.app.resolve_effect(effect, happened=True, result={"id": "ch_7"}, by="ann", note="the dashboard")

    assert (info.state, info.result, info.error) == (DONE, {"id": "ch_7"}, None)
    assert (info.by, info.note) == ("ann", "the dashboard")
    last = info.events[-1]
    assert (last.state, last.worker, last.by, last.note) == (DONE, None, "ann", "the dashboard")


@at_a_desk
async def test_a_result_of_none_is_a_result(desk: Desk) -> None:
    _, effect = await unknown(desk)

    info = await desk.app.resolve_effect(effect, happened=True)

    assert (info.state, info.result, info.error) == (DONE, None, None)


@at_a_desk
async def test_what_did_not_happen_is_absent(desk: Desk) -> None:
    _, effect = await unknown(desk)

    assert (await desk.app.resolve_effect(effect, happened=False, by="ann")).state is ABSENT


@at_a_desk
async def test_the_effects_of_a_held_run_may_be_resolved(desk: Desk) -> None:
    worker, claimed, effect = await intended(desk)
    await desk.bench.commit(worker, hold(claimed))

    assert (await desk.app.resolve_effect(effect, happened=False)).state is ABSENT


async def lost_early(desk: Desk) -> tuple[int, Claimed, str]:
    """A held run whose effect was in flight when its worker was taken over: the worker's lease is not over."""
    worker, claimed, effect = await intended(desk)
    await desk.bench.die(worker, recoveries_max=0)
    return worker, claimed, effect


@at_a_desk
async def test_nobody_says_that_it_did_not_happen_while_a_lost_worker_may_dispatch_it(desk: Desk) -> None:
    worker, claimed, effect = await lost_early(desk)
    [lease] = [row.lease_until for row in await desk.bench.store.workers(alive=False) if row.id == worker]

    with pytest.raises(Conflict, match=f"worker w{worker}.* until its lease is over") as caught:
        await desk.app.resolve_effect(effect, happened=False)
    assert (caught.value.effect_id, caught.value.run_id) == (effect, run_id(claimed.run))
    assert caught.value.until == moment(lease)
    assert (await desk.app.effect_info(effect)).state is UNKNOWN

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(desk.bench.store), "now_us", lambda _: as_it_is(lease))
        assert (await desk.app.resolve_effect(effect, happened=False)).state is ABSENT


async def as_it_is(value: int) -> int:
    return value


@at_a_desk
async def test_that_it_happened_may_be_said_at_once(desk: Desk) -> None:
    _, _, effect = await lost_early(desk)

    assert (await desk.app.resolve_effect(effect, happened=True, result="ch_1")).state is DONE


@at_a_desk
async def test_what_the_next_worker_wrote_of_it_does_not_end_the_lease_of_the_lost_one(desk: Desk) -> None:
    worker, _, effect = await intended(desk)
    await desk.bench.die(worker)
    again = await desk.bench.worker()
    claimed = await desk.bench.claim_one(again)
    lost = settle(claimed, int(effect[1:]), EffectState.UNKNOWN, outcome=encode_error(LOST), note="its worker died")
    await desk.bench.commit(again, lost, fail(claimed, encode_error(LOST)))

    with pytest.raises(Conflict, match="until its lease is over"):
        await desk.app.resolve_effect(effect, happened=False)


@at_a_desk
async def test_what_the_lost_worker_had_said_of_it_before_is_its_last_word(desk: Desk) -> None:
    worker, claimed, effect = await intended(desk)
    await desk.bench.commit(worker, settle(claimed, int(effect[1:]), EffectState.UNKNOWN, note="no answer"))
    await desk.bench.die(worker, recoveries_max=0)

    assert (await desk.app.resolve_effect(effect, happened=False)).state is ABSENT


@pytest.mark.parametrize("said", [{"happened": True, "result": {"b": 1, "a": 2.0}}, {"happened": False}])
def test_the_same_again_changes_nothing(said: dict[str, Any]) -> None:
    @at_a_desk
    async def body(desk: Desk) -> None:
        _, effect = await unknown(desk)
        first = await desk.app.resolve_effect(effect, **said, by="ann")

        again = await desk.app.resolve_effect(effect, **said, by="ben", note="me too")

        assert again == first

    body()


@at_a_desk
async def test_something_else_is_refused_with_what_stands(desk: Desk) -> None:
    _, effect = await unknown(desk)
    first = await desk.app.resolve_effect(effect, happened=True, result=1)

    for said in ({"happened": False}, {"happened": True, "result": 2}, {"undone": True}):
        with pytest.raises(Conflict, match="is done") as caught:
            await desk.app.resolve_effect(effect, **said)
        assert (caught.value.effect_id, caught.value.state) == (effect, DONE)
    assert await desk.app.effect_info(effect) == first


@at_a_desk
async def test_a_large_result_is_kept(desk: Desk) -> None:
    _, effect = await unknown(desk)
    large = ["x" * (2 * INLINE_BYTES_MAX)]

    assert (await desk.app.resolve_effect(effect, happened=True, result=large)).result == large
    assert (await desk.app.resolve_effect(effect, happened=True, result=large)).result == large


@at_a_desk
async def test_a_result_is_held_to_what_the_effect_declares_where_its_code_is_here(desk: Desk) -> None:
    _, effect = await unknown(desk, code=declared.plan.code)

    with pytest.raises(NotSerializable, match=effect):
        await desk.app.resolve_effect(effect, happened=True, result="ch_1")
    info = await desk.app.resolve_effect(effect, happened=True, result={"id": "ch_1"})

    assert (info.state, info.result) == (DONE, {"id": "ch_1"})
    assert await desk.app.resolve_effect(effect, happened=True, result=Receipt("ch_1")) == info


# -- where its run is at it -----------------------------------------------------------------------------------------


@at_a_desk
async def test_nobody_may_speak_for_an_effect_in_flight(desk: Desk) -> None:
    _, _, effect = await intended(desk)

    with pytest.raises(Conflict, match="in flight") as caught:
        await desk.app.resolve_effect(effect, happened=False)
    assert caught.value.state is EffectState.INTENDED


@at_a_desk
async def test_nobody_may_speak_for_one_that_a_worker_will_see_to(desk: Desk) -> None:
    worker, claimed, effect = await intended(desk)
    await desk.bench.commit(worker, requeue(claimed))

    with pytest.raises(Conflict, match="queued") as caught:
        await desk.app.resolve_effect(effect, happened=False)
    assert (caught.value.run_id, caught.value.run_state) == (run_id(claimed.run), RunState.QUEUED)


@at_a_desk
async def test_where_its_run_has_asked_it_is_answered_and_goes_on(desk: Desk) -> None:
    claimed, effect, question = await waiting(desk)

    info = await desk.app.resolve_effect(effect, happened=True, result="ch_1", by="ann")

    assert isinstance(info, EffectInfo) and info.state is UNKNOWN
    answered = await desk.app.interrupt_info(question)
    assert (answered.answer, answered.answered_by) == ({"happened": True, "result": "ch_1"}, "ann")
    assert await desk.bench.state(claimed.run) is RunState.QUEUED


@at_a_desk
async def test_the_same_answer_again_is_a_no_op_and_another_one_has_lost(desk: Desk) -> None:
    _, effect, question = await waiting(desk)
    await desk.app.resolve_effect(effect, happened=False, by="ann")

    await desk.app.resolve_effect(effect, happened=False, by="ben")
    with pytest.raises(AlreadyAnswered) as caught:
        await desk.app.resolve_effect(effect, happened=True, result="ch_1")

    assert caught.value.interrupt_id == question and caught.value.by == "ann"


@at_a_desk
async def test_an_answer_takes_no_note(desk: Desk) -> None:
    claimed, effect, _ = await waiting(desk)

    with pytest.raises(UsageError, match="leave note out"):
        await desk.app.resolve_effect(effect, happened=False, note="looked")
    assert await desk.bench.state(claimed.run) is RunState.WAITING


@at_a_desk
async def test_what_the_worker_has_made_of_the_answer_is_the_same_again(desk: Desk) -> None:
    _, effect, _ = await waiting(desk)
    await desk.app.resolve_effect(effect, happened=True, result="ch_1")
    worker = await desk.bench.worker()
    claimed = await desk.bench.claim_one(worker)
    done = settle(claimed, int(effect[1:]), outcome=canonical_bytes("ch_1"), key="pay")
    await desk.bench.commit(worker, done, end(claimed, encode("ok")))

    assert (await desk.app.resolve_effect(effect, happened=True, result="ch_1")).state is DONE


# -- undos ----------------------------------------------------------------------------------------------------------


@at_a_desk
async def test_what_was_undone_by_hand_is_undone_and_keeps_its_result(desk: Desk) -> None:
    _, _, effect = await badly_undone(desk)

    info = await desk.app.resolve_effect(effect, undone=True, by="ann")

    assert (info.state, info.result, info.by) == (UNDONE, "ch_1", "ann")
    assert await desk.app.resolve_effect(effect, undone=True, by="ben") == info


@at_a_desk
async def test_a_failed_undo_is_not_an_unknown_effect(desk: Desk) -> None:
    _, _, effect = await badly_undone(desk)

    with pytest.raises(Conflict, match="undone=True") as caught:
        await desk.app.resolve_effect(effect, happened=False)
    assert caught.value.state is UNDO_FAILED


@at_a_desk
async def test_while_its_run_undoes_the_others_nobody_may_say_it_is_undone(desk: Desk) -> None:
    _, _, effect = await badly_undone(desk, ended=False)

    with pytest.raises(Conflict, match="a worker undoes"):
        await desk.app.resolve_effect(effect, undone=True)


@at_a_desk
async def test_undos_that_failed_are_tried_again_on_request(desk: Desk) -> None:
    _, claimed, effect = await badly_undone(desk)

    info = await desk.app.retry(run_id(claimed.run), undo=True)

    assert info.state is RunState.QUEUED
    again = await desk.bench.claim_one(await desk.bench.worker())
    assert again.undoing is not None and again.undoing.outcome is RunState.FAILED
    assert (await desk.app.effect_info(effect)).undo_attempt == 0


@at_a_desk
async def test_a_run_whose_effects_were_undone_does_not_go_on(desk: Desk) -> None:
    _, claimed, _ = await badly_undone(desk)

    with pytest.raises(Conflict, match="new run, or fork") as caught:
        await desk.app.retry(run_id(claimed.run))
    assert (caught.value.run_id, caught.value.state) == (run_id(claimed.run), RunState.FAILED)


@at_a_desk
async def test_a_run_without_anything_to_undo_says_so(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin("thread", payload=encode([[], {}]))
    await desk.bench.commit(worker, step(claimed, "work", encode(1)), fail(claimed, encode_error(LOST)))

    with pytest.raises(Conflict, match="nothing is left"):
        await desk.app.retry(run_id(claimed.run), undo=True)
    assert await desk.bench.state(claimed.run) is RunState.FAILED


@at_a_desk
async def test_what_was_found_out_after_the_end_can_be_undone(desk: Desk) -> None:
    claimed, effect = await unknown(desk)
    await desk.app.resolve_effect(effect, happened=True, result="ch_1")

    await desk.app.retry(run_id(claimed.run), undo=True)

    again = await desk.bench.claim_one(await desk.bench.worker())
    assert again.undoing is not None
