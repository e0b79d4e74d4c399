"""The stage and agents with effects: crashes at every place, failures, answers, and replays that dispatch nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import perdure
from perdure import App, DidNotHappen, Happened, RunFailed
from perdure.core.effects import Effect, EffectFilter
from perdure.testing import answer_step, crash_after, crash_before, crash_in, fail_step, rehearse
from tests.kit.recorded import recorded, replayed
from tests.runtime.world import fresh_app

app = App("effects", store="memory://staged-effects")
works: dict[str, str] = {}
calls: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """A provider that has done nothing yet."""
    works.clear()
    calls.clear()
    yield


async def find(key: str, args: dict[str, Any]) -> Happened | DidNotHappen:
    return Happened(works[key]) if key in works else DidNotHappen()


async def refund(receipt: str) -> None:
    calls.append(f"refund {receipt}")


def provider(what: str) -> str:
    """Does the work of a key once."""
    key = perdure.effect_key()
    calls.append(what)
    return works.setdefault(key, f"receipt for {what}")


@perdure.effect(on_unknown="retry")
async def charge(what: str) -> str:
    return provider(what)


@perdure.effect(verify=find)
async def order(what: str) -> str:
    return provider(what)


@perdure.effect
async def mail(what: str) -> str:
    return provider(what)


@perdure.effect(undo=refund)
async def book(what: str) -> str:
    return provider(what)


@app.agent
async def payer(what: str) -> str:
    return await charge(what)


@app.agent
async def orderer(what: str) -> str:
    return await order(what)


@app.agent
async def mailer(what: str) -> str:
    return await mail(what)


@app.agent
async def booker(what: str) -> None:
    await book(what)
    raise ValueError("it is too late")


def ledger(stage: Any) -> list[Effect]:
    async def read() -> list[Effect]:
        return await (await app._client()).store.effects(EffectFilter())

    return list(stage.play(read))


CRASHES = [(crash_before, 1), (crash_in, 2), (crash_after, 1)]


@pytest.mark.parametrize(("crash", "bodies"), CRASHES, ids=["before", "in", "after"])
def test_a_crash_around_an_effect_that_is_retried_does_its_work_once(crash: Callable[..., Any], bodies: int) -> None:
    with rehearse(app, crash("charge")) as stage:
        assert stage.run(payer, "tea") == "receipt for tea"
        [row] = ledger(stage)
        assert (row.state, stage.crashes) == ("done", 1)
    assert (len(calls), len(works)) == (bodies, 1)


@pytest.mark.parametrize("crash", [crash_before, crash_in, crash_after])
def test_a_crash_around_an_effect_that_is_verified_does_its_work_once_without_a_key(crash: Callable[..., Any]) -> None:
    with rehearse(app, crash("order")) as stage:
        assert stage.run(orderer, "tea") == "receipt for tea"
    assert calls == ["tea"]


@pytest.mark.parametrize(("answer", "sent"), [(True, 1), (False, 2)])
def test_a_crash_in_an_effect_is_asked_about_and_the_answer_decides(answer: bool, sent: int) -> None:
    said = {"happened": True, "result": "sent it was"} if answer else {"happened": False}
    with rehearse(app, crash_in("mail")) as stage:
        stage.answer("effect:mail", said)
        assert stage.run(mailer, "hello") == ("sent it was" if answer else "receipt for hello")
        [asked] = stage.questions()
        assert asked.payload["effect"] == f"e{ledger(stage)[0].id}"
    assert len(calls) == sent


def test_an_effect_that_fails_before_anything_was_sent_is_tried_again() -> None:
    with rehearse(app, fail_step("mail", ConnectionRefusedError)) as stage:
        assert stage.run(mailer, "hello") == "receipt for hello"
        assert [row.attempt for row in ledger(stage)] == [2]
    assert calls == ["hello"]


def test_an_effect_whose_connection_breaks_is_one_that_nobody_knows_about() -> None:
    with rehearse(app, fail_step("mail", ConnectionResetError)) as stage:
        stage.answer("effect:mail", {"happened": False}, after="2h")
        assert stage.run(mailer, "hello") == "receipt for hello"
    assert calls == ["hello"]


def test_an_effect_is_answered_in_place_of_its_provider() -> None:
    with rehearse(app, answer_step("charge", lambda what: f"no receipt for {what}")) as stage:
        assert stage.run(payer, "tea") == "no receipt for tea"
        assert [row.state for row in ledger(stage)] == ["done"]
    assert calls == []


def test_what_was_done_on_a_stage_is_undone_there() -> None:
    with rehearse(app, crash_after("book")) as stage:
        with pytest.raises(RunFailed, match="too late"):
            stage.run(booker, "room")
        assert [row.state for row in ledger(stage)] == ["undone"]
    assert calls == ["room", "refund receipt for room"]


def test_a_replay_takes_effects_from_the_record_and_dispatches_nothing() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> list[str]:
        return [await charge("tea"), *await asyncio.gather(order("milk"), mail("hello"))]

    history = recorded(app, agent)
    calls.clear()
    outcome = replayed(app, history)
    assert (outcome.ok, calls) == (True, [])


def test_a_replay_of_a_run_whose_effects_were_undone_undoes_nothing_again() -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        await book("room")
        raise ValueError("it is too late")

    @app.agent
    async def regretful() -> str:
        await book("room")
        await perdure.compensate()
        return await charge("tent")

    for each in (agent, regretful):
        history = recorded(app, each)
        assert calls[:2] == ["room", "refund receipt for room"]
        calls.clear()
        outcome = replayed(app, history)
        assert (outcome.ok, calls) == (True, [])


def test_a_replay_stops_at_an_effect_that_is_not_on_record() -> None:
    app, later = fresh_app(), fresh_app()

    @app.agent(name="agent")
    async def before() -> str:
        return await charge("tea")

    history = recorded(app, before)
    calls.clear()

    @later.agent(name="agent")
    async def after() -> str:
        return await charge("tea") + await mail("thanks")

    outcome = replayed(later, history)
    assert (outcome.same, [each.where for each in outcome.differences], calls) == (False, ["mail"], [])
