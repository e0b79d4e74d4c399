"""The stage and what effects have beside their bodies: faults at undos and at who asks a provider, and undos that were
given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import perdure
from perdure import App, DidNotHappen, Happened, RunCancelled, RunFailed, StillUnknown, UsageError
from perdure.testing import answer_step, crash_after, crash_before, crash_in, fail_step, rehearse, slow_step

app = App("undos", store="memory://staged-undos")
calls: list[str] = []
CRASHES = [crash_before, crash_in, crash_after]
BODIES = [1, 2, 1]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A provider that has done nothing yet."""
    calls.clear()
    yield


async def refund(receipt: str) -> None:
    calls.append(f"refund {receipt}")


def unbook(receipt: str) -> None:
    calls.append(f"unbook {receipt}")


async def leave(result: str) -> None:
    """Wants the network, which a stage has not."""
    await asyncio.open_connection("provider.example", 443)


async def look_up(key: str, args: dict[str, Any]) -> Happened | DidNotHappen | StillUnknown:
    calls.append(f"look up {args['what']}")
    return DidNotHappen()


@perdure.effect(undo=refund, timeout=60)
async def charge(what: str) -> str:
    calls.append(f"charge {what}")
    return f"receipt for {what}"


@perdure.effect(undo=unbook)
async def book(what: str) -> str:
    return f"ticket for {what}"


@perdure.effect(undo=leave)
async def join(what: str) -> str:
    return what


@perdure.effect(verify=look_up, on_unknown="fail")
async def order(what: str) -> str:
    calls.append(f"order {what}")
    return f"order of {what}"


@perdure.effect(verify=look_up)
async def mail(what: str) -> str:
    return f"letter of {what}"


@app.agent
async def charger(*whats: str) -> None:
    for what in whats:
        await charge(what)
    raise ValueError("it is too late")


@app.agent
async def booker(what: str) -> None:
    await book.options(key="k7")(what)
    raise ValueError("it is too late")


@app.agent
async def joiner(what: str) -> None:
    await join(what)
    raise ValueError("it is too late")


@app.agent
async def orderer(what: str) -> str:
    return await order(what)


@app.agent
async def mailer(what: str) -> str:
    return await mail(what)


def fails(stage: Any, agent: Any, *args: str) -> None:
    with pytest.raises(RunFailed, match="too late"):
        stage.run(agent, *args)


def states(stage: Any) -> list[str]:
    return [each.state for each in stage.effects()]


# -- undos ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("crash", "bodies"), list(zip(CRASHES, BODIES, strict=True)))
def test_a_crash_around_an_undo_leaves_the_effect_undone(crash: Callable[..., Any], bodies: int) -> None:
    with rehearse(app, crash("undo:charge")) as stage:
        fails(stage, charger, "tea")
        assert (states(stage), stage.crashes) == (["undone"], 1)
    assert calls == ["charge tea", *["refund receipt for tea"] * bodies]


def test_an_undo_is_one_body_among_the_executions() -> None:
    with rehearse(app) as stage:
        fails(stage, charger, "tea", "milk")
        assert stage.keys() == ["charge", "charge#2", "undo:charge#2", "undo:charge"]
        assert (stage.count("undo:charge#2"), stage.count("undo:charge")) == (1, 2)
        assert stage.count("charge") == 2


def test_an_undo_is_answered_in_place_of_its_function() -> None:
    asked: list[str] = []
    with rehearse(app, answer_step("undo:charge", asked.append)) as stage:
        fails(stage, charger, "tea")
        assert states(stage) == ["undone"]
    assert (asked, calls) == (["receipt for tea"], ["charge tea"])


def test_an_undo_that_fails_is_tried_again() -> None:
    with rehearse(app, fail_step("undo:charge", ConnectionError("no route"), times=4)) as stage:
        fails(stage, charger, "tea")
        assert (states(stage), stage.count("undo:charge")) == (["undone"], 5)


def test_an_undo_that_takes_too_long_is_tried_again() -> None:
    with rehearse(app, slow_step("undo:charge", "2m")) as stage:
        fails(stage, charger, "tea")
        assert (states(stage), stage.count("undo:charge")) == (["undone"], 2)


@pytest.mark.parametrize("word", ["undo:book", "undo:k7"])
def test_an_undo_under_a_key_of_the_callers_is_named_by_it(word: str) -> None:
    with rehearse(app, crash_in(word)) as stage:
        fails(stage, booker, "tea")
        assert states(stage) == ["undone"]
    assert calls == ["unbook ticket for tea"] * 2


def test_one_undo_of_several_is_named_by_its_key() -> None:
    with rehearse(app, crash_in("undo:charge#2")) as stage:
        fails(stage, charger, "tea", "milk")
        assert states(stage) == ["undone", "undone"]
    assert calls[2:] == ["refund receipt for milk"] * 2 + ["refund receipt for tea"]


def test_a_fault_at_an_effect_does_not_strike_its_undo() -> None:
    with rehearse(app, crash_after("charge", times=2)) as stage:
        fails(stage, charger, "tea")
        assert stage.crashes == 1


def test_a_crash_in_an_undo_that_code_asked_for_leaves_the_effect_undone() -> None:
    regretful = App("regretful", store="memory://regretful")

    @regretful.agent
    async def agent() -> str:
        await charge("tea")
        await perdure.compensate()
        return "undone"

    with rehearse(regretful, crash_in("undo:charge"), crash_after("undo:charge")) as stage:
        assert stage.run(agent) == "undone"
    assert calls == ["charge tea", "refund receipt for tea", "refund receipt for tea"]


def test_an_undo_of_a_cancelled_run_is_rehearsed_too() -> None:
    sleepy = App("sleepy", store="memory://sleepy")

    @sleepy.agent
    async def agent() -> None:
        await charge("tea")
        await perdure.sleep("30d")

    with rehearse(sleepy, crash_in("undo:charge")) as stage:
        handle = stage.start(agent)
        stage.advance("1d")
        stage.cancel(handle)
        with pytest.raises(RunCancelled):
            stage.play(handle.result)
        assert states(stage) == ["undone"]


@pytest.mark.parametrize("word", ["refund", "undo:charg"])
def test_a_fault_that_names_an_undo_otherwise_is_told_its_name(word: str) -> None:
    with pytest.raises(AssertionError, match=r"did you mean 'undo:charge'\?"), rehearse(app, crash_in(word)) as stage:
        fails(stage, charger, "tea")


# -- who asks a provider ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_around_the_question_to_a_provider_does_the_work_once(crash: Callable[..., Any]) -> None:
    with rehearse(app, crash_before("order"), crash("verify:order")) as stage:
        assert stage.run(orderer, "tea") == "order of tea"
        assert stage.crashes == 2
    assert calls.count("order tea") == 1


@pytest.mark.parametrize("answer", [Happened("an old one"), lambda key, args: Happened(f"an old {args['what']}")])
def test_a_provider_is_answered_for(answer: Any) -> None:
    with rehearse(app, crash_in("order"), answer_step("verify:order", answer)) as stage:
        assert stage.run(orderer, "one") == "an old one"
        assert stage.count("verify:order") == 1
    assert calls == ["order one"]


def test_a_provider_that_does_not_answer_is_asked_again() -> None:
    with rehearse(app, crash_before("order"), fail_step("verify:order", TimeoutError("no answer"))) as stage:
        assert stage.run(orderer, "tea") == "order of tea"
        assert stage.count("verify:order") == 2


def test_a_crash_after_a_provider_could_not_tell_is_one_when_a_person_is_asked() -> None:
    with rehearse(
        app, crash_in("mail"), answer_step("verify:mail", StillUnknown("no idea")), crash_after("verify:mail")
    ) as stage:
        stage.answer("effect:mail", {"happened": True, "result": "it was sent"}, after="1h")
        assert stage.run(mailer, "tea") == "it was sent"
        assert stage.crashes == 2


# -- undos that were given up -----------------------------------------------------------------------------------------


def test_an_undo_that_was_given_up_fails_the_test() -> None:
    given_up = r"the undo of e\d+ \('join', of r\d+\) was given up.*NotInVirtualTime.*answer_step\('undo:join', None\)"
    with pytest.raises(AssertionError, match=given_up), rehearse(app) as stage:
        fails(stage, joiner, "the club")
        assert states(stage) == ["undo_failed"]


def test_an_undo_that_is_expected_to_be_given_up_fails_no_test() -> None:
    with rehearse(app) as stage:
        stage.expect_undo_failed("join")
        fails(stage, joiner, "the club")
        assert [each.name for each in stage.effects("undo_failed")] == ["join"]


def test_an_undo_that_is_expected_to_be_given_up_and_is_not_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="expected to fail, and did not: 'charge'"), rehearse(app) as stage:
        stage.expect_undo_failed("charge")
        fails(stage, charger, "tea")


@pytest.mark.parametrize(
    "fault", [fail_step("undo:charge", times=5), slow_step("undo:charge", "2m", times=5),
              answer_step("undo:charge", ValueError("it is shipped"))],
)  # fmt: skip
def test_an_undo_that_a_fault_makes_fail_needs_no_further_word(fault: Any) -> None:
    with rehearse(app, fault) as stage:
        fails(stage, charger, "tea")
        assert states(stage) == ["undo_failed"]


def test_an_undo_that_fails_by_itself_after_a_fault_was_over_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="was given up"), rehearse(app, fail_step("undo:join", times=4)) as stage:
        fails(stage, joiner, "the club")


def test_an_answer_that_does_not_fit_an_undo_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"was given up.*TypeError"):
        with rehearse(app, answer_step("undo:charge", lambda: None)) as stage:
            fails(stage, charger, "tea")


def test_an_undo_that_somebody_has_sent_on_and_that_went_through_is_none_that_was_given_up() -> None:
    with rehearse(app, fail_step("undo:charge", times=5)) as stage:
        fails(stage, charger, "tea")
        (row,) = stage.effects(name="charge")
        stage.play(lambda: app.retry(row.run_id, undo=True))
        stage.advance("1h")
        assert states(stage) == ["undone"]


@pytest.mark.parametrize("word", ["", None, 7])
def test_what_is_no_name_of_an_effect_is_refused(word: Any) -> None:
    with rehearse(app) as stage, pytest.raises(UsageError, match="name or the key of an effect"):
        stage.expect_undo_failed(word)
