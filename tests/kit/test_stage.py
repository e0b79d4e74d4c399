"""The stage as new users meet it: exact times, other apps, new versions, and what it refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

import perdure
from perdure import App, Retry, RunFailed, UsageError
from perdure.testing import (
    NeverEnded,
    answer_step,
    crash_after,
    crash_before,
    crash_in,
    fail_step,
    rehearse,
    slow_step,
)

app = App("staged", store="memory://staged")
other = App("other", store="memory://other")
tries: list[int] = []


@perdure.step
async def tell(what: str) -> str:
    return f"told {what}"


@perdure.step(timeout=1)
def ask_synchronously(what: str) -> str:
    async def answer() -> str:
        return f"answered {what}"

    return asyncio.run(answer())


@app.agent
async def agent(what: str = "tea") -> str:
    return await tell(what)


@app.agent(retry=Retry(attempts=2, delay_s=300, max_delay_s=600, jitter=0))
async def stumbling() -> str:
    tries.append(1)
    if len(tries) < 2:
        raise ConnectionError("no route")
    return await tell("late")


@app.agent
async def spinning() -> None:
    while True:
        await asyncio.sleep(0)


@app.agent
async def looping() -> None:
    while True:
        await tell("again")


@app.agent
async def waiting() -> None:
    await tell("first")
    await asyncio.get_running_loop().create_future()


@app.agent
async def synchronous() -> str:
    return await ask_synchronously("tea")


@app.agent
async def asking() -> str:
    answer: str = await (await other.start("echo", "tea")).result()
    return answer


@other.agent
async def echo(what: str) -> str:
    return what


# -- time ----------------------------------------------------------------------------------------------------


def test_a_run_begins_at_the_second_it_is_due() -> None:
    async def scene() -> None:
        handles = [await app.start(agent, delay=delay) for delay in (3600, 60, "30d", 60.5)]
        for handle in handles:
            await handle.result()

    with rehearse(app) as stage:
        began, real = stage.now, time.monotonic()
        stage.play(scene, within="31d")
        after_s = [(each.at - began).total_seconds() for each in stage.executions]
    assert after_s == pytest.approx([60, 60.5, 3600, 30 * 86_400], abs=0.2)
    assert time.monotonic() - real < 5


def test_an_agent_is_tried_again_at_the_second_it_is_due() -> None:
    tries.clear()
    with rehearse(app) as stage:
        before = stage.now
        assert stage.run(stumbling) == "told late"
        assert timedelta(seconds=299) < stage.now - before < timedelta(seconds=301)


def test_a_run_that_is_due_while_no_worker_is_there_begins_when_one_is() -> None:
    with rehearse(app) as stage:
        handle = stage.play(lambda: app.start(agent, delay=60))
        stage.advance("59.95s")
        stage.crash()
        before = stage.now
        assert stage.play(handle.result) == "told tea"
        assert stage.now - before < timedelta(seconds=1)


def test_an_agent_that_never_waits_is_named() -> None:
    with rehearse(app) as stage:
        with pytest.raises(NeverEnded, match=r"time does not pass, because spinning \(.*test_stage\.py:\d+\)"):
            stage.run(spinning, within="1m")


def test_an_agent_that_calls_steps_for_ever_is_stopped() -> None:
    with rehearse(app) as stage:
        with pytest.raises(NeverEnded, match=r"round and round.*of looping is running"):
            stage.run(looping)


def test_a_scene_that_never_waits_is_named() -> None:
    async def dancing() -> None:
        while True:
            await asyncio.sleep(0)

    with rehearse(app) as stage:
        with pytest.raises(NeverEnded, match="because dancing"):
            stage.play(dancing)
        assert stage.run(agent) == "told tea"


# -- apps ----------------------------------------------------------------------------------------------------


def test_a_worker_of_the_apps_own_is_refused_on_a_stage() -> None:
    async def scene() -> None:
        async with app.worker():
            pass

    async def blocking() -> None:
        app.run(agent)

    with rehearse(app) as stage:
        for wrong in (scene, blocking):
            with pytest.raises(UsageError, match="the stage has its worker"):
                stage.play(wrong)


def test_an_app_that_is_not_on_the_stage_is_refused_there() -> None:
    async def scene() -> None:
        await other.start(echo, "tea")

    with rehearse(app) as stage:
        with pytest.raises(UsageError, match=r"app other .*apps="):
            stage.play(scene)
        with pytest.raises(RunFailed, match="apps="):
            stage.run(asking)


def test_several_apps_are_on_one_stage() -> None:
    with rehearse(app, apps=[other]) as stage:
        assert stage.run(asking) == "tea"
        assert other.store_name == "memory://rehearsal"
    assert (app.store_name, other.store_name) == ("memory://staged", "memory://other")


def test_two_stages_are_two_worlds_and_both_give_their_stores_back() -> None:
    for _ in range(2):
        with rehearse(app) as stage, rehearse(other):
            with pytest.raises(RunFailed, match="another stage"):
                stage.run(asking)
        assert (app.store_name, other.store_name) == ("memory://staged", "memory://other")


def test_a_store_comes_back_with_its_password() -> None:
    secret = App("secret", store="memory://secret")
    secret.agent(name="agent")(agent.fn)
    secret.store_url = "postgresql://me:word@host/db"

    with pytest.raises(RuntimeError), rehearse(secret):
        raise RuntimeError

    assert secret.store_url == "postgresql://me:word@host/db"


def test_two_agents_of_one_name_are_not_on_one_stage() -> None:
    twin = App("twin", store="memory://twin")
    twin.agent(name="agent")(agent.fn)
    with pytest.raises(UsageError, match="'agent'"), rehearse(app, apps=[twin]):
        pass
    assert (app.store_name, twin.store_name) == ("memory://staged", "memory://twin")


# -- versions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("before", [0, 1])
def test_after_a_deploy_the_new_code_runs(seed: int, before: int) -> None:
    newer = App("newer", store="memory://newer")

    @newer.agent(name="agent")
    async def new(what: str = "tea") -> str:
        return f"new {what}"

    with rehearse(app, seed=seed) as stage:
        for _ in range(before):
            assert stage.run(agent) == "told tea"
        stage.deploy("v2", newer)
        assert stage.run(agent) == "new tea"
        assert newer.store_name == "memory://rehearsal"
    assert newer.store_name == "memory://newer"


def test_a_scene_may_deploy() -> None:
    async def new(what: str = "tea") -> str:
        return f"new {what}"

    async def scene() -> tuple[Any, Any]:
        old = await (await app.start(agent)).result()
        stage.deploy("v2", {"agent": App("newer", store="memory://newer").agent(name="agent")(new)})
        return old, await (await app.start(agent)).result()

    with rehearse(app) as stage:
        assert stage.play(scene) == ("told tea", "new tea")


@pytest.mark.parametrize(
    "wrong", [("",), (2,), ("v2", {}), ("v2", "app"), ("v2", {"agent": agent.fn}), ("v2", App("e"))]
)
def test_a_deploy_that_cannot_be_is_refused_and_changes_nothing(wrong: Any) -> None:
    with rehearse(app) as stage:
        with pytest.raises(UsageError):
            stage.deploy(*wrong)
        assert stage.run(agent) == "told tea"


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ((app, "tick"), "crash_after"),
        ((app, crash_after), r'crash_after\("search"\)'),
        ((app, [crash_after("tell")]), r"\*faults"),
        (("app",), "App itself"),
        ((app, None), "fault"),
    ],
)
def test_what_is_no_fault_or_no_app_is_refused_with_the_remedy(wrong: Any, remedy: str) -> None:
    with pytest.raises(UsageError, match=remedy), rehearse(*wrong):
        pass


@pytest.mark.parametrize(
    "options", [{"apps": other}, {"apps": ["other"]}, {"apps": 3}, {"seed": "x"}, {"deployment": 2}]
)
def test_an_option_that_cannot_be_is_refused(options: Any) -> None:
    with pytest.raises(UsageError), rehearse(app, **options):
        pass
    assert app.store_name == "memory://staged"


@pytest.mark.parametrize(
    "word", [crash_before, crash_in, crash_after, fail_step, lambda step, **n: slow_step(step, 1, **n)]
)
@pytest.mark.parametrize("count", [{"nth": "1"}, {"times": 0}, {"nth": True}])
def test_a_count_of_executions_is_a_number(word: Callable[..., Any], count: Any) -> None:
    with pytest.raises(UsageError, match="nth="):
        word("tell", **count)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, SystemExit(1), asyncio.CancelledError, UnicodeDecodeError]
)
def test_a_step_fails_by_an_exception_that_can_be_made(error: Any) -> None:
    for word in (fail_step, answer_step):
        with pytest.raises(UsageError):
            word("tell", error)


def test_a_scene_is_an_async_function() -> None:
    async def scene() -> None:
        pass

    with rehearse(app) as stage:
        wrong: list[Any] = [scene(), lambda: 3, 3]
        for each in wrong:
            with pytest.raises(UsageError, match="async function"):
                stage.play(each)


def test_time_passes_once() -> None:
    with rehearse(app) as stage:
        verbs: list[Callable[[], Any]] = [lambda: stage.run(agent), lambda: stage.advance(1)]
        for verb in verbs:

            async def scene(verb: Callable[[], Any] = verb) -> None:
                verb()

            with pytest.raises(UsageError, match=r"await app\.start"):
                stage.play(scene)


def test_nothing_happens_on_a_stage_that_is_over() -> None:
    with rehearse(app) as stage:
        pass
    verbs: list[Callable[[], Any]] = [stage.crash, lambda: stage.deploy("v2"), lambda: stage.advance(1)]
    for verb in verbs:
        with pytest.raises(UsageError, match="over"):
            verb()


def test_a_step_that_wants_a_socket_is_told_what_to_do() -> None:
    net = App("net", store="memory://net")

    @perdure.step
    async def fetch() -> None:
        await asyncio.open_connection("localhost", 1)

    @perdure.step
    async def call() -> None:
        await asyncio.create_subprocess_exec("true")

    @perdure.step
    async def get() -> None:
        async with httpx.AsyncClient() as client:  # what refuses it is in a group of the library's tasks
            await client.get("http://127.0.0.1:1")

    steps = {"fetch": fetch, "call": call, "get": get}

    @net.agent
    async def surf(which: str) -> None:
        await steps[which]()

    for which in steps:
        with rehearse(net) as stage:
            with pytest.raises(RunFailed, match=r"no sockets, processes.*answer_step"):
                stage.run(surf, which)
            assert stage.count(which) == 1


# -- steps ---------------------------------------------------------------------------------------------------


def test_a_def_step_may_have_an_event_loop_of_its_own() -> None:
    with rehearse(app) as stage:
        assert stage.run(synchronous) == "answered tea"


@pytest.mark.parametrize("answer", [ValueError, ValueError("no")])
def test_an_exception_as_an_answer_is_raised(answer: Any) -> None:
    with rehearse(app, answer_step("tell", answer)) as stage:
        with pytest.raises(RunFailed, match="ValueError"):
            stage.run(agent)


def test_a_fault_that_never_struck_says_which_step_may_be_meant() -> None:
    with pytest.raises(AssertionError, match="did you mean 'tell'"):
        with rehearse(app, crash_after("tel")) as stage:
            stage.run(agent)
    with pytest.raises(AssertionError, match=r"at number 2 \(it came to 1\)"):
        with rehearse(app, crash_after("tell", nth=2)) as stage:
            stage.run(agent)


def test_a_count_takes_a_name() -> None:
    with rehearse(app) as stage:
        assert stage.count("nobody") == 0
        for wrong in (3, "", tell):
            with pytest.raises(UsageError, match="count"):
                stage.count(wrong)  # type: ignore[arg-type]


# -- what never ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ({}, r"not over after 100 days .* is running, pinned to rehearsal: the last body that began is 'tell', try 1"),
        ({"queue": "far"}, r"is queued: no agent on the stage has queue 'far' \(there is default\)"),
        ({"delay": "130d"}, r"is queued: it is due in 30 days"),
    ],
)
def test_what_never_ends_says_what_it_needs(start: Any, says: str) -> None:
    with rehearse(app) as stage, pytest.raises(NeverEnded, match=says):
        stage.run(waiting, **start)


def test_a_scene_that_waits_for_nothing_is_what_never_ends() -> None:
    async def scene() -> None:
        await asyncio.get_running_loop().create_future()

    with rehearse(app) as stage:
        with pytest.raises(NeverEnded, match=r"90 minutes|1\.5 hours.*no run was started; the scene itself"):
            stage.play(scene, within="90m")
        stage.run(agent)
        with pytest.raises(NeverEnded, match="every run has ended; the scene itself"):
            stage.play(scene, within=1)


def test_a_held_run_says_how_it_is_sent_on() -> None:
    async def scene() -> None:
        await app.start(agent)
        await asyncio.get_running_loop().create_future()

    with rehearse(app, crash_in("tell", times=100)) as stage:
        with pytest.raises(NeverEnded, match=r"is held, .*app\.release\('r\d+'\)"):
            stage.play(scene)
