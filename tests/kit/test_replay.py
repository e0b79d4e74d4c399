"""Recorded runs against the code that made them, and against code whose steps were changed."""

from __future__ import annotations

import asyncio
import random as random_module
from typing import Any

import pytest

import perdure
from perdure import Again, App, StepFailed
from perdure.testing import replay
from tests.kit.recorded import (
    Seen,
    changed,
    executed,
    findings,
    flaky,
    large,
    recorded,
    replayed,
    search,
    shop,
    two_searches,
)
from tests.runtime.world import fresh_app, working


def test_the_code_that_made_a_run_does_the_same_and_executes_no_body() -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea", thread_id="t")
    executed.clear()

    outcome = replayed(app, history)

    assert (outcome.same, outcome.ok, outcome.differences) == (True, True, ())
    assert (outcome.super_steps, outcome.records) == (3, 3 * 9 + 1)
    assert executed == []
    outcome.assert_same()
    outcome.assert_ok()


def test_a_later_run_of_a_thread_begins_with_the_state_of_the_one_before() -> None:
    app = fresh_app()
    agent = shop(app)
    first = recorded(app, agent, "tea", thread_id="t")
    second = recorded(app, agent, "milk", thread_id="t")

    assert first.before is None
    assert second.before is not None
    replayed(app, second).assert_same()


def test_a_run_that_failed_and_left_a_state_is_what_the_next_one_begins_with() -> None:
    app = fresh_app()

    @app.agent
    async def agent(fails: bool, again: bool = True, *, state: Seen) -> int | Again:
        state.items.append("seen")
        if again:
            return Again(fails, again=False)
        if fails:
            raise ValueError("no")
        return len(state.items)

    recorded(app, agent, True, thread_id="t")
    second = recorded(app, agent, False, thread_id="t")

    replayed(app, second).assert_same()


def test_a_step_with_other_arguments_has_diverged_and_the_others_are_looked_at_too() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        first = await search("coffee")
        second, third = await asyncio.gather(search("milk"), search("salt"))
        return f"{first[0]} {second[0]} {third[0]}"

    outcome = replayed(app, history)

    assert findings(outcome) == [("diverged", 1, "search"), ("diverged", 1, "2/search")]
    assert [each.now for each in outcome.diverged] == ["('coffee')", "('salt')"]
    assert not outcome.ok
    assert "CANNOT go on" in str(outcome) and "DIVERGED" in str(outcome)
    assert str(outcome).count("step 'search' is on record with other arguments") == 1
    with pytest.raises(AssertionError, match="DIVERGED"):
        outcome.assert_same()
    with pytest.raises(AssertionError, match="DIVERGED"):
        outcome.assert_ok()


def test_arguments_that_a_step_ignores_do_not_diverge() -> None:
    @perdure.step(ignore_args=True)
    async def look(at: str) -> str:
        return at

    async def before() -> str:
        return await look("tea")

    history, app = changed(before)

    @app.agent
    async def agent() -> str:
        return await look("coffee")

    replayed(app, history).assert_same()


def test_a_step_that_is_not_on_record_would_run_and_its_branch_ends_there() -> None:
    history, app = changed(two_searches)
    executed.clear()

    @app.agent
    async def agent() -> str:
        first = await search("tea")
        second, third = await asyncio.gather(search("milk"), search("salt"), large(3))  # type: ignore[misc]
        return f"{first[0]} {second[0]} {third[0]}"

    outcome = replayed(app, history)

    assert findings(outcome) == [("diverged", 1, "2/search"), ("would run now", 1, "3/large")]
    assert executed == []


def test_a_new_step_alone_is_a_change_and_breaks_nothing() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        return await large(len(await search("tea")))

    outcome = replayed(app, history)

    assert findings(outcome) == [("would run now", 1, "large")]
    assert (outcome.ok, outcome.same, outcome.differences[0].now) == (True, False, "(2)")
    outcome.assert_ok()


@pytest.mark.parametrize("known", ["large", "3/large"])
@pytest.mark.parametrize("answer", ["xx", lambda size: "x" * size])
def test_an_answer_takes_the_replay_further(known: str, answer: Any) -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        first = await search("tea")
        second, third, extra = await asyncio.gather(search("milk"), search("sugar"), large(2))
        return f"{first[0]} {second[0]} {third[0]} {extra}"

    outcome = replayed(app, history, answers={known: answer})

    assert findings(outcome) == [("would run now", 1, "3/large"), ("other result", 1, "result")]
    assert (outcome.differences[1].recorded, outcome.differences[1].now) == (
        '"tea milk sugar"',
        '"tea milk sugar xx"',
    )


@pytest.mark.parametrize("answer", [ConnectionError("gone"), lambda size: ConnectionError("gone")])
def test_an_answer_may_be_an_error(answer: Any) -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        try:
            return await large(1)
        except StepFailed as error:
            return f"{error.message} after {error.attempts}"

    outcome = replayed(app, history, answers={"large": answer})

    assert outcome.differences[-1].now == '"gone after 1"'


def test_records_that_nobody_asks_for_any_more_are_named() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        await search("tea")
        return "tea milk sugar"

    outcome = replayed(app, history)

    assert findings(outcome) == [("not asked for", 1, "1/search"), ("not asked for", 1, "2/search")]
    assert outcome.ok


def test_an_agent_that_waits_for_something_else_is_given_up() -> None:
    async def before() -> None:
        return None

    history, app = changed(before)

    @app.agent
    async def agent() -> None:
        await asyncio.get_running_loop().create_future()

    outcome = replayed(app, history, timeout=0.05)

    assert findings(outcome) == [("does not end", 1, "end")]
    assert not outcome.ok


def test_a_replay_starts_no_run_and_asks_for_none() -> None:
    app = fresh_app()

    @app.agent
    async def scout(place: str) -> str:
        return place

    @app.agent
    async def lead() -> str:
        handle = await app.start(scout, "oslo", key=perdure.current().run_id)
        return str(await handle.result()) + (await search("after"))[0]

    history = recorded(app, lead)
    runs_before = asyncio.run(_runs(app))

    outcome = replayed(app, history)

    assert [(each.finding.value, each.now) for each in outcome.differences] == [
        ("asks its app", "starts or awaits a run")
    ]
    assert asyncio.run(_runs(app)) == runs_before == 2
    assert outcome.ok


async def _runs(app: App) -> int:
    async with app:
        return len(await app.runs())


def test_an_app_that_works_can_replay_meanwhile_and_several_at_a_time() -> None:
    app = fresh_app()
    agent = shop(app)
    history = recorded(app, agent, "tea")

    async def main() -> list[bool]:
        async with working(app):
            handle = await app.start(agent, "milk")
            outcomes = await asyncio.gather(*(replay(app, history) for _ in range(5)))
            assert await handle.result(timeout=20)
            return [each.same for each in outcomes]

    assert asyncio.run(main()) == [True] * 5


def test_an_agent_that_is_gone_is_an_error() -> None:
    history, app = changed(two_searches)

    with pytest.raises(perdure.UnknownAgent, match="no agent 'agent'"):
        replayed(app, history)


def test_time_and_chance_of_the_record_are_seen_and_new_ones_are_named() -> None:
    async def before() -> float:
        return perdure.random()

    history, app = changed(before)

    @app.agent
    async def agent() -> float:
        perdure.uuid4()
        return perdure.random()

    outcome = replayed(app, history)

    assert findings(outcome) == [("would run now", 1, "uuid4")]


def test_a_race_is_won_by_whoever_is_on_record() -> None:
    @perdure.step
    async def fast() -> str:
        return "fast"

    @perdure.step
    async def never() -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    async def agent() -> str:
        tasks = [asyncio.ensure_future(never()), asyncio.ensure_future(fast())]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return done.pop().result()

    history, app = changed(agent)
    app.agent(agent)

    replayed(app, history).assert_same()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_an_agent_did_its_own_code_does_again(seed: int) -> None:
    def program(name: str) -> Any:
        async def branch(chance: random_module.Random, depth: int) -> int:
            total = 0
            for _ in range(chance.randint(1, 4)):
                match chance.randint(0, 4):
                    case 0 if depth:
                        seeds = [chance.random() for _ in range(3)]
                        total += sum(await asyncio.gather(*(branch(random_module.Random(s), depth - 1) for s in seeds)))
                    case 1:
                        total += len(await flaky(str(total)))
                    case 2:
                        total += int(perdure.random() * 10)
                    case _:
                        total += len(await search(str(total)))
            return total

        async def agent(left: int, *, state: Seen) -> int | Again:
            total = await branch(random_module.Random(f"{seed} {left}"), 2)
            state.items.append(str(total) * 50)
            return Again(left - 1) if left else total

        agent.__name__ = name
        return agent

    app = fresh_app()
    history = recorded(app, app.agent(program("agent")), 3)

    replayed(app, history).assert_same()
