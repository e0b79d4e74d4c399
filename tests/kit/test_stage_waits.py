"""The stage and agents that wait: months in no time, people who answer or do not, messages, children, crashes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import (
    App,
    Child,
    Default,
    InterruptClosed,
    InterruptInfo,
    InvalidAnswer,
    NotFound,
    RunCancelled,
    RunFailed,
)
from perdure.core.records import RunState
from perdure.testing import (
    NeverEnded,
    answer_step,
    crash_after,
    crash_before,
    crash_in,
    rehearse,
)

app = App("waiting", store="memory://waiting")


@perdure.step
async def note(word: str) -> str:
    return word


@app.agent
async def patient() -> str:
    await perdure.sleep("30d")
    return await note("a month later")


@app.agent
async def buyer(item: str, cents: int = 100) -> str:
    try:
        yes = await perdure.interrupt({"item": item, "cents": cents}, name="approve", schema=bool, timeout="2d")
    except TimeoutError:
        return "nobody answered"
    return await note("bought") if yes else "refused"


@app.agent
async def twice() -> list[Any]:
    return [await perdure.interrupt(number, name="approve") for number in range(2)]


@app.agent
async def reader(count: int) -> list[Any]:
    return [await perdure.receive() for _ in range(count)]


@app.agent
async def writer(thread_id: str) -> None:
    for number in range(3):
        await perdure.send(thread_id, number)


@app.agent
async def parent() -> list[str]:
    children: list[Child] = [await perdure.start(buyer, item) for item in ("tea", "milk")]
    return list(await asyncio.gather(*(child.result() for child in children)))


@app.agent
async def limited() -> str:
    try:
        async with perdure.timeout("1h"):
            await perdure.receive()
    except TimeoutError:
        return "too late"
    return "in time"


@app.agent
async def tidy() -> str:
    try:
        await perdure.sleep("1d")
    finally:
        await note("tidied up")
    return "slept"


@app.agent
async def all_waits() -> list[Any]:
    """Every kind of wait, and what goes out."""
    me = perdure.current().thread_id
    await perdure.sleep("1h")
    found = [await perdure.interrupt("what?", name="approve")]
    await perdure.send(me, "a message to myself")
    found.append(await perdure.receive(str))
    async with perdure.timeout("1d"):
        found.append(await perdure.call(buyer, "tea"))
    return found


def test_a_month_passes_in_no_time() -> None:
    began = time.monotonic()
    with rehearse(app) as stage:
        before = stage.now
        assert stage.run(patient) == "a month later"
        assert stage.now - before == pytest.approx(timedelta(days=30), abs=timedelta(seconds=1))
        assert [(each.name, each.kind) for each in stage.waits] == [("sleep", "timer")]
        assert stage.waits[0].due == pytest.approx(before + timedelta(days=30), abs=timedelta(seconds=1))
    assert time.monotonic() - began < 5


def test_an_answer_may_be_given_in_advance() -> None:
    with rehearse(app) as stage:
        stage.answer("approve", True, by="ann", after="3h")
        before = stage.now
        assert stage.run(buyer, "tea") == "bought"
        (asked,) = stage.questions()
        assert (asked.payload, asked.answer, asked.answered_by) == ({"item": "tea", "cents": 100}, True, "ann")
        assert stage.now - before >= timedelta(hours=3)


def test_an_answer_may_be_a_function_of_the_question() -> None:
    async def decide(asked: InterruptInfo) -> bool:
        return bool(asked.payload["cents"] < 500)

    with rehearse(app) as stage:
        stage.answer("approve", decide)
        assert [stage.run(buyer, "tea", cents) for cents in (100, 900)] == ["bought", "refused"]


def test_an_open_question_is_answered_at_once_by_its_name_or_its_id() -> None:
    with rehearse(app) as stage:
        first, second = stage.start(buyer, "tea"), stage.start(buyer, "milk")
        stage.advance("1d")
        asked = {each.run_id: each for each in stage.questions("open")}
        stage.answer(asked[first.run_id].id, False)
        stage.answer("approve", True)
        assert stage.play(first.result) == "refused"
        assert stage.play(second.result) == "bought"
        assert stage.questions("open") == []


def test_what_nobody_answers_expires() -> None:
    with rehearse(app) as stage:
        before = stage.now
        assert stage.run(buyer, "tea") == "nobody answered"
        assert stage.now - before >= timedelta(days=2)
        assert [each.state for each in stage.questions()] == ["expired"]


def test_who_answers_too_late_changes_nothing() -> None:
    with rehearse(app) as stage:
        stage.answer("approve", True, after="3d")
        assert stage.run(buyer, "tea") == "nobody answered"
        stage.advance("2d")
        assert [each.state for each in stage.questions()] == ["expired"]


def test_the_newest_answer_to_a_name_stands_and_a_key_means_one_question() -> None:
    with rehearse(app) as stage:
        stage.answer("approve", 1)
        stage.answer("approve", 2)
        stage.answer("approve#2", 3)
        assert stage.run(twice) == [2, 3]


def test_an_answer_that_does_not_fit_is_seen_where_it_was_given() -> None:
    with rehearse(app) as stage:
        handle = stage.start(buyer, "tea")
        stage.advance("1m")
        with pytest.raises(InvalidAnswer, match="question i"):
            stage.answer("approve", "perhaps")
        stage.answer("approve", True)
        assert stage.play(handle.result) == "bought"

    with rehearse(app) as stage:
        stage.answer("approve", "perhaps")
        with pytest.raises(InvalidAnswer):
            stage.run(buyer, "tea")


def test_an_answer_to_what_is_closed_is_refused() -> None:
    with rehearse(app) as stage:
        assert stage.run(buyer, "tea") == "nobody answered"
        (asked,) = stage.questions()
        with pytest.raises(InterruptClosed, match="expired"):
            stage.answer(asked.id, True)
        with pytest.raises(NotFound, match="i999"):
            stage.answer("i999", True)


def test_an_answer_that_nobody_asked_for_fails_the_rehearsal() -> None:
    with (
        pytest.raises(AssertionError, match=r"nobody has asked 'aprove' \(did you mean 'approve'\?\)"),
        rehearse(app) as stage,
    ):
        stage.answer("aprove", True)
        stage.run(buyer, "tea")


def test_messages_are_sent_from_the_test() -> None:
    with rehearse(app) as stage:
        handle = stage.start(reader, 2, thread_id="box")
        stage.advance("10d")
        stage.send("box", {"n": 1})
        stage.advance("10d")
        stage.send("box", {"n": 2})
        assert stage.play(handle.result) == [{"n": 1}, {"n": 2}]
        assert [each.kind for each in stage.waits] == ["message", "message"]
        with pytest.raises(NotFound, match="nobody"):
            stage.send("nobody", 1)


def test_children_and_their_questions_are_on_the_same_stage() -> None:
    with rehearse(app) as stage:
        stage.answer("approve", lambda asked: asked.payload["item"] == "tea", after="1h")
        assert stage.run(parent) == ["bought", "refused"]
        assert {each.agent for each in stage.questions()} == {"buyer"}


def test_a_limit_and_a_deadline_come_in_virtual_time() -> None:
    with rehearse(app) as stage:
        before = stage.now
        assert stage.run(limited) == "too late"
        assert stage.now - before == pytest.approx(timedelta(hours=1), abs=timedelta(seconds=1))
        with pytest.raises(RunFailed, match="before its deadline"):
            stage.run(patient, deadline="2d")


def test_a_run_is_cancelled_and_tidies_up() -> None:
    with rehearse(app) as stage:
        handle = stage.start(tidy)
        stage.advance("1h")
        assert stage.cancel(handle, "not needed") is RunState.CANCELLED
        with pytest.raises(RunCancelled, match="not needed"):
            stage.play(handle.result)
        assert stage.count("note") == 1
        assert stage.cancel(handle.run_id) is RunState.CANCELLED


@pytest.mark.parametrize(
    ("crash", "place"),
    [
        *itertools.product(
            [crash_before, crash_in, crash_after], ["sleep", "approve", "timeout", "start:buyer", "result:buyer"]
        ),
        *itertools.product([crash_before, crash_after], ["receive", "send"]),  # the message is there: nothing waits
    ],
)
def test_a_crash_at_any_wait_comes_to_the_same_end(crash: Callable[..., Any], place: str) -> None:
    with rehearse(app, crash(place)) as stage:
        stage.answer("approve", lambda asked: True if asked.schema else "that")
        assert stage.run(all_waits) == ["that", "a message to myself", "bought"]
        assert stage.crashes == 1
        assert [each.agent for each in stage.questions()] == ["all_waits", "buyer"]
        assert len(stage.play(app.runs)) == 2


@pytest.mark.parametrize("crash", [crash_before, crash_after])
def test_a_crash_around_a_message_sends_it_once(crash: Callable[..., Any]) -> None:
    with rehearse(app, crash("send", nth=2)) as stage:
        box = stage.start(reader, 3, thread_id="box")
        stage.run(writer, "box")
        assert stage.play(box.result) == [0, 1, 2]
        assert stage.play(app.thread("box").mailbox) == []


def test_a_crash_while_a_run_is_parked_concerns_nobody() -> None:
    with rehearse(app) as stage:
        handle = stage.start(buyer, "tea")
        stage.advance("1h")
        stage.crash()
        stage.answer("approve", True)
        assert stage.play(handle.result) == "bought"
        assert (stage.crashes, stage.play(handle.status).recoveries) == (1, 0)


def test_a_question_survives_a_deploy() -> None:
    newer = App("newer", store="memory://newer")

    @newer.agent(name="buyer")
    async def bold(item: str, cents: int = 100) -> str:
        yes = await perdure.interrupt({"item": item, "cents": cents}, name="approve", schema=bool)
        return f"new code: {yes}"

    with rehearse(app, deployment="v1") as stage:
        handle = stage.start(buyer, "tea")
        stage.advance("1h")
        stage.deploy("v1", newer)
        stage.answer("approve", True)
        assert stage.play(handle.result) == "new code: True"


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ((patient,), r"r\d+ of patient is waiting, .*: it waits for a time in 28 days; give a longer within="),
        ((twice,), r"it waits for an answer to 'approve' \(i\d+\); stage.answer\('approve', ...\)"),
        ((reader, 1), r"it waits for a message; stage.send\('t', ...\)"),
        ((parent,), r"it waits for the end of r\d+ and for the end of r\d+"),
        ((buyer, "tea"), r"an answer to 'approve' \(i\d+\), for 12 hours more"),
    ],
)
def test_what_waits_for_ever_says_what_for(start: Any, says: str) -> None:
    with rehearse(app) as stage, pytest.raises(NeverEnded, match=says):
        stage.run(*start, thread_id="t", within="2d" if start[0] is patient else "36h")


def test_a_fault_that_needs_a_body_says_that_a_wait_has_none() -> None:
    with (
        pytest.raises(AssertionError, match=r"instead of the body 'approve' \(it is no step: .*stage.answer"),
        rehearse(app, answer_step("approve", True)) as stage,
    ):
        stage.run(buyer, "tea")


@pytest.mark.parametrize("wrong", ["", None, 7])
def test_a_question_is_meant_by_its_name(wrong: Any) -> None:
    with rehearse(app) as stage, pytest.raises(perdure.UsageError, match="its name, key or id"):
        stage.answer(wrong, True)


def test_a_scene_answers_as_a_client_does() -> None:
    async def scene() -> str:
        handle = await app.start(buyer, "tea")
        await asyncio.sleep(3600)  # virtual time, in which nobody waits
        with pytest.raises(perdure.UsageError, match="await app"):
            stage.answer("approve", True)
        await app.resume(handle.thread_id, True)
        return str(await handle.result())

    with rehearse(app) as stage:
        assert stage.play(scene) == "bought"


def test_a_default_stands_for_an_answer_that_did_not_come() -> None:
    other = App("other", store="memory://other")

    @other.agent
    async def asking() -> str:
        return str(await perdure.interrupt("which?", name="which", timeout="1w", on_timeout=Default("the first")))

    with rehearse(other) as stage:
        assert stage.run(asking) == "the first"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_waits_the_same(seed: int) -> None:
    def play() -> tuple[Any, ...]:
        with rehearse(app, crash_in("approve"), seed=seed) as stage:
            stage.answer("approve", lambda asked: True if asked.schema else "that", after="1h")
            return stage.run(all_waits), stage.now, stage.waits

    assert play() == play()
