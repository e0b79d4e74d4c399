"""The stage: an app's own agents in virtual time, with faults where a test wants them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure import Again, App, Retry, RunFailed, RunHeld, UsageError
from perdure.testing.fake_model import FakeModel, Reply
from perdure.testing.rehearsal import (
    Rehearsal,
    answer_step,
    crash_after,
    crash_before,
    crash_in,
    fail_step,
    rehearse,
    slow_step,
)
from perdure.testing.rehearsal.rehearsal import NeverEnded

app = App("rehearsed", store="memory://the-real-one")


@perdure.step
async def search(query: str) -> list[str]:
    return [f"{query} found"]


@perdure.step(retry=Retry(attempts=4, delay_s="1h", factor=1))
async def charge(what: str) -> str:
    return f"paid {what}"


@perdure.step(timeout=60)
def shout(text: str) -> str:
    return text.upper()


@app.agent
async def order(item: str) -> str:
    first, second = await asyncio.gather(search(item), search(f"{item} too"))
    return await shout(await charge(f"{first[0]}, {second[0]}"))


@app.agent
async def count(to: int, *, state: dict[str, int]) -> int | Again:
    state["sum"] = state.get("sum", 0) + (await add(state.get("sum", 0)))
    return Again(to - 1) if to > 1 else state["sum"]


@perdure.step
async def add(to: int) -> int:
    return 1


RECEIPT = "PAID TEA FOUND, TEA TOO FOUND"

Set = Callable[..., Rehearsal]


def test_an_agent_runs_to_its_result() -> None:
    with rehearse(app) as stage:
        assert stage.run(order, "tea") == RECEIPT
        assert stage.keys() == ["1/search", "2/search", "charge", "shout"]


@pytest.mark.parametrize(
    ("fault", "begun"),
    [(crash_before, 2), (crash_in, 2), (crash_after, 1)],
)
def test_a_crash_repeats_a_body_only_if_nothing_was_recorded(fault: Any, begun: int) -> None:
    with rehearse(app, fault("charge")) as stage:
        assert stage.run(order, "tea") == RECEIPT
        assert (stage.crashes, stage.count("charge"), stage.count("search")) == (1, begun, 2)


def test_a_crash_can_be_aimed_at_one_call_by_its_key() -> None:
    with rehearse(app, crash_after("2/search")) as stage:
        assert stage.run(order, "tea") == RECEIPT
        assert stage.count("2/search") == 1


@pytest.mark.parametrize("fault", [crash_before, crash_in, crash_after])
@pytest.mark.parametrize("called", ["look", "call_1"])
def test_a_step_with_a_key_of_its_own_is_found_by_its_name_and_by_that_key(fault: Any, called: str) -> None:
    tools = App("tools", store="memory://")

    @perdure.step
    async def look(at: str) -> str:
        return at

    @tools.agent
    async def agent() -> str:
        return await look.options(key="call_1")("tea")

    with rehearse(tools, fault(called)) as stage:
        assert stage.run(agent) == "tea"
        assert stage.crashes == 1


def test_crashes_in_a_row_at_every_step_come_to_the_same_end() -> None:
    with rehearse(app, crash_after("search", times=2), crash_in("charge", times=2), crash_in("shout")) as stage:
        assert stage.run(order, "tea") == RECEIPT
        assert stage.crashes >= 3


def test_a_step_that_fails_is_tried_again_in_no_time_though_minutes_later() -> None:
    began = time.monotonic()
    with rehearse(app, fail_step("charge", ConnectionError("no route"), times=3)) as stage:
        before = stage.now
        assert stage.run(order, "tea") == RECEIPT
        assert stage.count("charge") == 4
        assert stage.now - before > timedelta(minutes=2)
    assert time.monotonic() - began < 20


def test_a_step_that_fails_for_good_fails_its_run() -> None:
    with rehearse(app, fail_step("charge", ValueError("no such card"))) as stage:
        with pytest.raises(RunFailed, match="no such card"):
            stage.run(order, "tea")


def test_a_slow_step_runs_into_its_limit() -> None:
    with rehearse(app, slow_step("shout", "2m")) as stage:
        assert stage.run(order, "tea") == RECEIPT
        assert stage.count("shout") == 2


def test_a_step_can_be_answered_by_the_test() -> None:
    with rehearse(app, answer_step("search", lambda query: [query]), answer_step("shout", "done")) as stage:
        assert stage.run(order, "tea") == "done"


def test_a_run_that_kills_every_worker_is_held() -> None:
    with rehearse(app, crash_in("charge", times=100)) as stage:
        with pytest.raises(RunHeld, match=r"exhausted|poison"):
            stage.run(order, "tea")


def test_state_is_neither_lost_nor_doubled_by_crashes() -> None:
    with rehearse(app, crash_after("add", nth=2), crash_in("add", nth=4)) as stage:
        assert stage.run(count, 5, thread_id="sums") == 5
        assert stage.run(count, 2, thread_id="sums") == 7


def test_a_scene_is_a_client_with_time_of_its_own() -> None:
    async def scene() -> tuple[str, str]:
        handle = await app.start(order, "tea", delay="3h", key="once")
        again = await app.start(order, "tea", key="once")
        await asyncio.sleep(3600)  # in virtual time: it takes none
        waiting = (await handle.status()).state
        assert await again.result() == RECEIPT
        return waiting, (await handle.status()).state

    with rehearse(app) as stage:
        assert stage.play(scene) == ("queued", "completed")


def test_a_crash_may_come_from_the_test_itself() -> None:
    with rehearse(app, slow_step("charge", "1h")) as stage:
        handle = stage.play(lambda: app.start(order, "tea"))
        stage.advance("10m")
        stage.crash()
        assert stage.play(handle.result) == RECEIPT
        assert (stage.count("search"), stage.count("charge")) == (2, 2)


def test_a_run_waits_for_the_version_it_began_under() -> None:
    other = App("rehearsed", store="memory://the-real-one")

    async def renamed(item: str) -> str:
        return f"the new code has {item}"

    other.agent(name="order")(renamed)
    with rehearse(app, slow_step("charge", "1h")) as stage:
        old = stage.play(lambda: app.start(order, "tea"))
        stage.advance("1m")
        stage.deploy("v2", other)
        assert stage.run("order", "coffee") == "the new code has coffee"
        with pytest.raises(NeverEnded, match=r"r\d+ of order is queued, pinned to rehearsal"):
            stage.play(old.result, within="1h")
        stage.deploy("rehearsal", app)
        assert stage.play(old.result) == RECEIPT


def test_what_never_ends_says_where_it_stands() -> None:
    with rehearse(app) as stage:
        with pytest.raises(NeverEnded, match=r"r\d+ of order is queued"):
            stage.run(order, "tea", queue="nobody serves it", within="1h")


def test_a_fault_that_never_struck_fails_the_rehearsal() -> None:
    with pytest.raises(AssertionError, match=r"'serch'.*executed: charge, search, shout"):
        with rehearse(app, crash_after("serch")) as stage:
            stage.run(order, "tea")


def test_the_apps_own_store_is_not_touched_and_comes_back() -> None:
    with rehearse(app) as stage:
        stage.run(order, "tea")
        assert app.store_name == "memory://rehearsal"

    assert app.store_name == "memory://the-real-one"


def test_an_app_on_stage_refuses_the_real_world() -> None:
    async def outside() -> None:
        await app.start(order, "tea")

    with rehearse(app), pytest.raises(UsageError, match="on stage"):
        asyncio.run(outside())


def test_the_same_seed_plays_the_same() -> None:
    plays = []
    for _ in range(2):
        with rehearse(app, crash_in("charge"), seed=7) as stage:
            stage.run(order, "tea")
            plays.append([(each.key, each.attempt, each.at) for each in stage.executions])
    assert plays[0] == plays[1]


def test_one_app_is_on_one_stage_at_a_time() -> None:
    with rehearse(app), pytest.raises(UsageError, match="on a stage already"):
        with rehearse(app):
            pass


def test_the_fixture_sets_a_stage_for_the_test(pytester_like: Set) -> None:
    stage = pytester_like(app, crash_after("charge"))
    assert stage.run(order, "tea") == RECEIPT


@pytest.fixture
def pytester_like(request: pytest.FixtureRequest) -> Set:
    """The fixture of the plugin, under a name that does not hide the function."""
    fixture: Set = request.getfixturevalue("rehearse")
    return fixture


@pytest.mark.parametrize("wrong", [lambda: crash_after(""), lambda: fail_step("a", 3), lambda: crash_in("a", nth=0)])  # type: ignore[arg-type]
def test_a_fault_that_cannot_be_meant_is_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        wrong()


def test_a_stage_can_be_set_inside_a_running_event_loop() -> None:
    async def main() -> str:
        with rehearse(app, crash_in("charge")) as stage:
            receipt: str = stage.run(order, "tea")
        await asyncio.sleep(0)
        assert asyncio.get_running_loop().is_running()
        return receipt

    assert asyncio.run(main()) == RECEIPT


@pytest.mark.parametrize("time", ["first", "second"])
def test_a_fault_is_new_in_every_rehearsal(time: str) -> None:
    with rehearse(app, ONCE) as stage:
        stage.run(order, "tea")
    assert stage.crashes == 1, time


ONCE = crash_before("charge")


def test_an_answer_may_be_an_async_function_and_a_fake_model() -> None:
    ask = perdure.step(FakeModel(), name="ask")
    chat = App("chat", store="memory://chat")

    @chat.agent
    async def greet(name: str) -> str:
        reply: str = (await ask(name)).text
        return reply

    async def polite(name: str) -> Reply:
        return Reply(f"good day, {name}")

    for answer in (polite, FakeModel(["good day, tea"])):
        with rehearse(chat, answer_step("ask", answer)) as stage:
            assert stage.run(greet, "tea") == "good day, tea"


def test_a_call_with_a_key_of_its_own_is_struck_and_counted_by_that_key() -> None:
    keyed = App("keyed", store="memory://keyed")

    @keyed.agent
    async def pay(item: str) -> str:
        return await charge.options(key=f"pay/{item}")(item)

    with rehearse(keyed, crash_before("pay/tea")) as stage:
        stage.run(pay, "tea")
    assert [stage.count(word) for word in ("pay/tea", "=pay/tea", "charge", "pay")] == [2, 2, 2, 0]


def test_a_scene_that_did_not_end_in_time_goes_on_no_more() -> None:
    acts: list[str] = []

    async def scene() -> None:
        await asyncio.sleep(10)  # in virtual time, which costs nothing
        acts.append("late")

    with rehearse(app) as stage:
        with pytest.raises(NeverEnded):
            stage.play(scene, within=5)
        stage.advance(60)
    assert acts == []


def test_nothing_is_played_when_the_rehearsal_is_over() -> None:
    with rehearse(app) as stage:
        stage.run(order, "tea")
    with pytest.raises(UsageError, match="over"):
        stage.run(order, "tea")
    with rehearse(app) as stage:
        assert stage.run(order, "tea")


def test_what_cannot_be_rehearsed_is_refused_at_once() -> None:
    for wrong in ("charge", crash_before, None):
        with pytest.raises(UsageError, match="fault"), rehearse(app, wrong):  # type: ignore[arg-type]
            pass
    for nth in ("2", 0, True):
        with pytest.raises(UsageError, match="from 1 on"):
            crash_before("charge", nth=nth)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="deployment"), rehearse(app, deployment="x" * 10_000):
        pass
    with rehearse(app) as stage:
        assert stage.run(order, "tea")
