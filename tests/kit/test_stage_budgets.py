"""The stage and budgets: asked about, answered, raised by hand, and counted once whatever dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import perdure
from perdure import App, Budget, Cost, RunFailed
from perdure.testing import NeverEnded, crash_after, crash_before, crash_in, fail_step, rehearse

app = App("budgeting", store="memory://staged-budgets")


@perdure.step(estimate=Cost(usd=1), retry=3)
async def think(n: int) -> int:
    perdure.meter("usd", 1)
    return n


@app.agent
async def thinker(count: int) -> int:
    return sum([await think(n) for n in range(count)])


@app.agent(budget=Budget(usd=2))
async def frugal(count: int) -> int:
    return sum([await think(n) for n in range(count)])


def spent(stage: Any) -> list[tuple[str, float]]:
    return [(each.name, each.spent["usd"]) for each in stage.budgets()]


def test_a_run_that_has_spent_its_budget_asks_and_goes_on_when_it_is_raised() -> None:
    with rehearse(app) as stage:
        stage.answer("budget", {"raise_to": {"usd": 5}}, by="ann", after="3h")
        before = stage.now
        assert stage.run(thinker, 4, budget=Budget(usd=2)) == 6
        (asked,) = stage.questions()
        assert (asked.payload["spent"], asked.payload["wanted"]) == ({"usd": 2}, {"usd": 1})
        assert (asked.answered_by, round((stage.now - before).total_seconds() / 3600)) == ("ann", 3)
        assert [wait.name for wait in stage.waits] == ["budget"]
        assert spent(stage) == [(f"run:{asked.run_id}", 4)]


def test_an_answer_may_look_at_what_is_spent() -> None:
    with rehearse(app) as stage:
        stage.answer("budget", lambda asked: {"raise_to": {"usd": asked.payload["limit"]["usd"] + 1}})
        assert stage.run(frugal, 5) == 10
        assert [each.payload["limit"]["usd"] for each in stage.questions()] == [2, 3, 4]


def test_a_run_that_is_told_to_stop_fails() -> None:
    with rehearse(app) as stage:
        stage.answer("budget", {"stop": True}, by="ann")
        with pytest.raises(RunFailed, match="not enough usd left, and ann said to stop"):
            stage.run(frugal, 3)
        assert stage.count("think") == 2


def test_a_budget_that_nobody_raises_keeps_its_runs_waiting_until_somebody_sets_it() -> None:
    with rehearse(app) as stage:
        stage.set_budget("agent:thinker", Budget(usd=1))
        handle = stage.start(thinker, 2)
        with pytest.raises(NeverEnded, match=r"an answer to 'budget'.*stage.answer\('budget'"):
            stage.play(handle.result, within="2d")
        stage.set_budget("agent:thinker", Budget(usd=10), by="ann")
        assert stage.play(handle.result) == 1
        assert [question.state for question in stage.questions()] == ["withdrawn"]
        assert [(each.limits["usd"], each.spent["usd"], each.by) for each in stage.budgets("agent:")] == [
            (10, 2, "ann")
        ]


@pytest.mark.parametrize("place", ["think", "think#2", "think#3"])
@pytest.mark.parametrize("crash", [crash_before, crash_in, crash_after])
def test_what_is_spent_counts_once_whenever_the_worker_dies(crash: Callable[..., Any], place: str) -> None:
    with rehearse(app, crash(place)) as stage:
        stage.answer("budget", {"raise_to": {"usd": 9}})
        assert stage.run(thinker, 3, budget=Budget(usd=2)) == 3
        ((_, usd),) = spent(stage)
        # What was set aside for a try that died may be spent: nobody knows, so that counts.
        assert usd == 4 if crash is not crash_after else usd in (3, 4)
        assert [int(row.quantity) for row in stage.usage(name="usd")] == [3]


@pytest.mark.parametrize("crash", [crash_before, crash_in])
def test_a_worker_that_dies_as_it_asks_about_a_budget_asks_again(crash: Callable[..., Any]) -> None:
    with rehearse(app, crash("budget")) as stage:
        stage.answer("budget", {"raise_to": {"usd": 9}})
        assert stage.run(frugal, 3) == 3
        assert (len(stage.questions()), stage.crashes) == (1, 1)


def test_a_try_that_fails_gives_back_what_it_did_not_use() -> None:
    with rehearse(app, fail_step("think", ConnectionError, times=2)) as stage:
        assert stage.run(thinker, 2, budget=Budget(usd=2)) == 1
        assert [usd for _, usd in spent(stage)] == [2]
        (row,) = stage.budgets()
        assert (row.reserved["usd"], row.spent["steps"]) == (0, 4)
