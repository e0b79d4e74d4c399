"""The inbox: what is open, who may answer, and who won."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from perdure import (
    AlreadyAnswered,
    Conflict,
    InterruptClosed,
    InvalidAnswer,
    NotFound,
    NotSerializable,
    ThreadBusy,
    UsageError,
)
from perdure.core.codec import encode
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import InterruptState, RunState, run_id
from perdure.testing.conformance.harness import again, end, park, wait
from tests.runtime.desk import Desk, at_a_desk


@dataclass
class Decision:
    """An answer with a type of its own."""

    buy: bool
    limit: int = 0


@at_a_desk
async def test_a_question_is_in_the_inbox_until_it_is_answered(desk: Desk) -> None:
    asked, claimed = await desk.asked(
        payload={"buy": "tea"}, schema=Decision, name="approve", assignee="alice", tenant="acme", delay_s=3600
    )
    (info,) = await desk.app.interrupts()
    assert (info.id, info.run_id, info.thread_id, info.agent) == (asked, run_id(claimed.run), "thread", "agent")
    assert (info.name, info.state, info.payload) == ("approve", InterruptState.OPEN, {"buy": "tea"})
    assert (info.assignee, info.tenant, info.on_timeout) == ("alice", "acme", "raise")
    assert info.schema is not None and "Decision" in info.schema["$defs"]
    assert info.expires_at is not None and info.expires_at - info.created_at == timedelta(hours=1)
    assert (info.answer, info.answered_by, info.answered_at) == (None, None, None)

    won = await desk.app.resume(asked, Decision(buy=True), by="alice")

    assert (won.state, won.answer, won.answered_by) == (InterruptState.ANSWERED, {"buy": True, "limit": 0}, "alice")
    assert won.answered_at is not None and won.answered_at.tzinfo is UTC
    assert await desk.app.interrupts() == []
    assert await desk.app.interrupt_info(asked) == won
    assert await desk.app.interrupts(state="answered") == [won]
    assert await desk.bench.state(claimed.run) is RunState.QUEUED


@at_a_desk
async def test_the_inbox_can_be_searched(desk: Desk) -> None:
    one, claimed = await desk.asked("one", assignee="alice", tenant="acme")
    two, _ = await desk.asked("two", agent="stateless")
    find = desk.app.interrupts
    assert [info.id for info in await find()] == [one, two]
    assert [info.id for info in await find(agent="stateless")] == [two]
    assert [info.id for info in await find(thread_id="one")] == [one]
    assert [info.id for info in await find(run_id=run_id(claimed.run))] == [one]
    assert [info.id for info in await find(assignee="alice")] == [one]
    assert [info.id for info in await find(tenant="acme")] == [one]
    assert [info.id for info in await find(limit=1)] == [one]
    assert [info.id for info in await find(limit=1, after=one)] == [two]
    assert await find(state="expired") == []
    assert [info.id for info in await find(state=None)] == [one, two]


@at_a_desk
async def test_the_first_answer_wins_and_the_next_one_is_told_so(desk: Desk) -> None:
    asked, _ = await desk.asked()
    await desk.app.resume(asked, "yes", by="alice")
    with pytest.raises(AlreadyAnswered, match=r"alice.*'yes'") as lost:
        await desk.app.resume(asked, "no", by="bob")
    assert (lost.value.interrupt_id, lost.value.answer, lost.value.by) == (asked, "yes", "alice")
    assert isinstance(lost.value.at, datetime)


@at_a_desk
async def test_the_same_answer_again_is_a_no_op(desk: Desk) -> None:
    asked, _ = await desk.asked()
    won = await desk.app.resume(asked, {"a": 1, "b": [2.0]}, by="alice")
    assert await desk.app.resume(asked, {"b": [2], "a": 1.0}, by="bob") == won


@at_a_desk
async def test_of_many_answers_at_once_one_wins_and_the_others_are_told_which(desk: Desk) -> None:
    asked, _ = await desk.asked()
    answers = await asyncio.gather(*(desk.app.resume(asked, n) for n in range(20)), return_exceptions=True)
    (winner,) = [answer for answer in answers if not isinstance(answer, BaseException)]
    losers = [answer for answer in answers if isinstance(answer, AlreadyAnswered)]
    assert len(losers) == 19 and {lost.answer for lost in losers} == {winner.answer}


@at_a_desk
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(desk: Desk) -> None:
    asked, claimed = await desk.asked(schema=Decision)
    with pytest.raises(InvalidAnswer, match=r"\$\.limit.*'many' is not of type 'integer'") as wrong:
        await desk.app.resume(asked, {"buy": True, "limit": "many"})
    assert (wrong.value.path, wrong.value.interrupt_id) == ("$.limit", asked)
    with pytest.raises(NotSerializable, match="object"):
        await desk.app.resume(asked, object())
    assert [info.id for info in await desk.app.interrupts()] == [asked]
    assert await desk.bench.state(claimed.run) is RunState.WAITING


@at_a_desk
async def test_a_thread_stands_for_its_only_open_question(desk: Desk) -> None:
    first, _ = await desk.asked()
    other, _ = await desk.asked("other")
    assert (await desk.app.resume("thread", "yes")).id == first
    with pytest.raises(Conflict, match="no open question"):
        await desk.app.resume("thread", "yes")
    assert [info.id for info in await desk.app.interrupts()] == [other]


@at_a_desk
async def test_a_thread_with_several_open_questions_names_them(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    asked = [await desk.ask(worker, claimed, key, name=key) for key in ("a", "b")]
    await desk.bench.commit(worker, park(claimed))
    with pytest.raises(Conflict, match=rf"{asked[0]} \(a: 'buy\?'\), {asked[1]} \(b: 'buy\?'\)") as several:
        await desk.app.resume("thread", "yes")
    assert several.value.interrupt_ids == tuple(asked)
    assert (await desk.app.resume(asked[1], "yes")).state is InterruptState.ANSWERED
    assert (await desk.app.resume("thread", "yes")).id == asked[0]


@at_a_desk
async def test_a_thread_may_be_named_like_a_question(desk: Desk) -> None:
    asked, _ = await desk.asked("i99999999")
    assert (await desk.app.resume("i99999999", 1)).id == asked


@at_a_desk
async def test_who_approves_can_say_what_he_has_seen(desk: Desk) -> None:
    asked, _ = await desk.asked(payload={"pay": 100})
    (info,) = await desk.app.interrupts()
    with pytest.raises(Conflict, match="not about what you have seen") as changed:
        await desk.app.resume(asked, True, digest="0" * 40)
    assert changed.value.digest == info.digest
    assert (await desk.app.resume(asked, True, digest=info.digest)).answer is True


@at_a_desk
async def test_an_expired_question_takes_no_answer(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    asked = await desk.ask(worker, claimed, delay_s=0)
    with pytest.raises(InterruptClosed, match="has expired") as late:
        await desk.app.resume(asked, "yes")
    assert late.value.state is InterruptState.EXPIRED
    assert (await desk.app.interrupt_info(asked)).state is InterruptState.EXPIRED
    assert await desk.app.interrupts() == []


@at_a_desk
async def test_a_question_whose_run_has_gone_on_takes_no_answer(desk: Desk) -> None:
    worker, claimed = await desk.bench.begin()
    asked = await desk.ask(worker, claimed)
    await desk.bench.commit(worker, again(claimed, 2, waited=True), end(claimed, encode(None), super_step=3))
    with pytest.raises(InterruptClosed, match="withdrawn") as late:
        await desk.app.resume(asked, "yes")
    assert late.value.state is InterruptState.WITHDRAWN
    assert (await desk.app.interrupt_info(asked)).state is InterruptState.WITHDRAWN


@at_a_desk
async def test_a_question_of_a_run_that_will_be_cancelled_says_so(desk: Desk) -> None:
    asked, claimed = await desk.asked()
    await desk.app.cancel(run_id(claimed.run), reason="too dear")

    (info,) = await desk.app.interrupts()
    won = await desk.app.resume(asked, "yes")

    assert (info.run_cancel, won.run_cancel) == ("too dear", "too dear")
    assert (await desk.app.interrupt_info(asked)).run_cancel == "too dear"


@at_a_desk
async def test_large_questions_and_answers_lie_in_blobs(desk: Desk) -> None:
    large = "x" * (INLINE_BYTES_MAX + 1)
    asked, _ = await desk.asked(payload=large)
    assert (await desk.app.interrupt_info(asked)).payload == large
    assert (await desk.app.resume(asked, large)).answer == large
    assert (await desk.app.resume(asked, large)).answer == large
    with pytest.raises(AlreadyAnswered) as lost:
        await desk.app.resume(asked, large + "y")
    assert lost.value.answer == large and len(str(lost.value)) < 1000


@at_a_desk
async def test_a_null_answer_is_an_answer(desk: Desk) -> None:
    asked, _ = await desk.asked()
    assert (await desk.app.resume(asked, None)).state is InterruptState.ANSWERED
    with pytest.raises(AlreadyAnswered):
        await desk.app.resume(asked, False)


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda app: app.resume("i99999", 1), NotFound, "interrupts list"),
        (lambda app: app.resume("nowhere", 1), NotFound, "interrupts list"),
        (lambda app: app.resume("", 1), UsageError, "non-empty"),
        (lambda app: app.resume(7, 1), UsageError, "non-empty"),
        (lambda app: app.resume("thread", 1, by=""), UsageError, "by must be"),
        (lambda app: app.interrupt_info("i99999"), NotFound, "interrupts list"),
        (lambda app: app.interrupt_info("r1"), UsageError, "i42"),
        (lambda app: app.interrupts(state="asked"), UsageError, "open, answered"),
        (lambda app: app.interrupts(limit=0), UsageError, "limit"),
        (lambda app: app.interrupts(after="7"), UsageError, "i42"),
        (lambda app: app.interrupts(run_id="7"), UsageError, "r42"),
        (lambda app: app.interrupts(assignee="\0"), UsageError, "NUL"),
    ],
)
def test_nonsense_is_a_typed_error_with_its_remedy(call: Any, error: type[Exception], remedy: str) -> None:
    @at_a_desk
    async def nonsense(desk: Desk) -> None:
        asked, _ = await desk.asked()
        with pytest.raises(error, match=remedy):
            await call(desk.app)
        assert [info.id for info in await desk.app.interrupts()] == [asked]

    nonsense()


# -- a start that meets a question ------------------------------------------------------------------------------------


@at_a_desk
async def test_c33_a_start_on_a_thread_with_an_open_question_is_refused_and_names_it(desk: Desk) -> None:
    asked, claimed = await desk.asked(payload={"pay": "alice", "cents": 100})
    with pytest.raises(ThreadBusy, match=rf"{run_id(claimed.run)} has asked {asked} .*alice.*if_busy=") as busy:
        await desk.app.start("agent", thread_id="thread")
    assert (busy.value.run_id, busy.value.interrupt_id) == (run_id(claimed.run), asked)
    assert len(await desk.app.runs()) == 1
    assert [info.id for info in await desk.app.interrupts()] == [asked]


@at_a_desk
async def test_c33_a_start_may_say_what_becomes_of_the_question(desk: Desk) -> None:
    asked, claimed = await desk.asked()
    assert (await desk.app.start("agent", thread_id="thread", if_busy="join")).run_id == run_id(claimed.run)
    with pytest.raises(ThreadBusy):
        await desk.app.start("agent", thread_id="thread", if_busy="reject")
    queued = await desk.app.start("agent", thread_id="thread", if_busy="enqueue")
    assert (await queued.status()).waiting_for == f"run {run_id(claimed.run)} of its thread"
    assert [info.id for info in await desk.app.interrupts()] == [asked]


@pytest.mark.parametrize("if_busy", ["interrupt", "rollback"])
def test_a_start_may_displace_what_is_there(if_busy: Literal["interrupt", "rollback"]) -> None:
    @at_a_desk
    async def displacing(desk: Desk) -> None:
        _, claimed = await desk.asked()
        waiting = await desk.app.start("agent", thread_id="thread", if_busy="enqueue")
        new = await desk.app.start("agent", thread_id="thread", if_busy=if_busy)
        why = f"{new.run_id} was started in its place"
        assert (await desk.bench.run(claimed.run)).cancel == why
        gone = await waiting.status()
        assert gone.state is RunState.CANCELLED and gone.error is not None
        assert (gone.error.type, gone.error.message) == ("perdure.errors.RunCancelled", why)

    displacing()


@at_a_desk
async def test_a_start_without_a_question_queues_as_ever(desk: Desk) -> None:
    await desk.bench.parked("thread", wait(delay_s=60))
    handle = await desk.app.start("agent", thread_id="thread")
    assert (await handle.status()).state is RunState.QUEUED
