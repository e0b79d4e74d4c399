"""Histories and replays of runs that hand over, meter, have budgets and write the store's own tables."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, Budget, Cost, RunFailed, Sink, StepFailed, Transaction
from perdure.runtime.sinks import Outgoing
from perdure.testing import History, crash_after, record_history, rehearse
from tests.kit.recorded import findings, recorded, replayed
from tests.runtime import world
from tests.runtime.world import fresh_app, working

acted: list[Any] = []


class Kept(Sink):
    async def deliver(self, item: Outgoing) -> None:
        acted.append(item.payload)


@perdure.step(estimate=Cost(usd=1))
async def think(n: int) -> int:
    acted.append(n)
    perdure.meter("usd", 1)
    return n


@perdure.step
async def say(n: int) -> int:
    acted.append(n)
    return n


@perdure.transaction
async def move(tx: Transaction, cents: int) -> int:
    acted.append(f"moved {cents}")
    return await tx.execute("insert into moves values (?)", cents)


@perdure.transaction
async def fail(tx: Transaction) -> None:
    raise ValueError("never")


async def trade(item: str) -> list[Any]:
    perdure.meter("orders", 1, item=item)
    keys = [await perdure.deliver("orders", {"item": item}), await perdure.deliver("orders", item, key=f"key {item}")]
    found: list[Any] = [*await asyncio.gather(think(1), think(2)), *keys]
    perdure.meter("keys", len(keys))
    return found


def with_sinks(billing: str | None = None) -> App:
    app = App("later", store="memory://", billing=billing)
    app.sink("orders", Kept())
    app.sink("bills", Kept())
    return app


def test_a_replay_hands_over_nothing_and_meters_nothing() -> None:
    app = with_sinks("bills")
    agent = app.agent(name="trade")(trade)
    history = recorded(app, agent, "tea")
    acted.clear()

    outcome = replayed(app, history)

    assert (outcome.same, outcome.differences, acted) == (True, (), [])


def test_a_history_of_a_run_that_hands_over_survives_its_file(tmp_path: Path) -> None:
    app = with_sinks("bills")
    history = recorded(app, app.agent(trade), "tea")
    history.save(tmp_path / "tea.json")

    again = History.load(tmp_path / "tea.json")

    assert again == history
    assert replayed(app, again).same


def test_a_replay_does_not_need_the_sinks() -> None:
    app = with_sinks()
    history = recorded(app, app.agent(trade), "tea")
    later = fresh_app()
    later.agent(trade)

    assert replayed(later, history).same


def test_a_replay_finds_that_something_else_is_handed_over() -> None:
    app, later = with_sinks(), with_sinks()

    @app.agent(name="agent")
    async def before() -> str:
        return await perdure.deliver("orders", {"cents": 1}, key="o-1")

    @later.agent(name="agent")
    async def after() -> str:
        return await perdure.deliver("orders", {"cents": 2}, key="o-1")

    outcome = replayed(later, recorded(app, before))

    assert findings(outcome) == [("diverged", 1, "deliver:orders")]


def test_a_replay_stops_at_a_delivery_that_is_not_on_record_or_goes_on_with_an_answer() -> None:
    app, later = with_sinks(), with_sinks()

    @app.agent(name="agent")
    async def before() -> int:
        return await think(1)

    @later.agent(name="agent")
    async def after() -> int:
        number = await think(1)
        assert await perdure.deliver("orders", number) == "the key"
        return number

    history = recorded(app, before)
    acted.clear()

    assert findings(replayed(later, history)) == [("would run now", 1, "deliver:orders")]
    answered = replayed(later, history, answers={"deliver:orders": "the key"})
    assert findings(answered) == [("would run now", 1, "deliver:orders")]
    assert (answered.ok, acted) == (True, [])


def test_a_meter_that_is_not_on_record_does_not_end_the_replay() -> None:
    app, later = fresh_app(), fresh_app()

    @app.agent(name="agent")
    async def before() -> int:
        return await think(await think(1))

    @later.agent(name="agent")
    async def after() -> int:
        perdure.meter("begun", 1)
        number = await think(1)
        perdure.meter("half", 1)
        number = await think(number)
        return number + await say(0)

    history = recorded(app, before)

    outcome = replayed(later, history, answers={"say": 0})

    assert (outcome.ok, outcome.records) == (True, 2)
    assert findings(outcome) == [("would run now", 1, where) for where in ("meter", "meter#2", "say")]
    assert findings(replayed(later, history)) == findings(outcome)


def test_a_meter_of_another_quantity_diverges() -> None:
    app, later = fresh_app(), fresh_app()

    @app.agent(name="agent")
    async def before() -> None:
        perdure.meter("begun", 1)

    @later.agent(name="agent")
    async def after() -> None:
        perdure.meter("begun", 2)

    assert findings(replayed(later, recorded(app, before))) == [("diverged", 1, "meter")]


# -- budgets -------------------------------------------------------------------------------------------------


def about_its_budget(app: App, agent: Any, answer: dict[str, Any] | None, **options: Any) -> History:
    """The history of a run that asked about its budget, and was answered, or not yet."""

    async def main() -> History:
        async with working(app):
            handle = await app.start(agent, **options)
            (question,) = (await world.asked(app, handle)).values()
            if answer is not None:
                await app.resume(question, answer)
                try:
                    await handle.result(timeout=20)
                except RunFailed:
                    pass
            return await record_history(app, handle.run_id)

    return asyncio.run(main())


@pytest.mark.parametrize("answer", [{"raise_to": {"usd": 9}}, {"stop": True}, None])
def test_a_replay_of_a_run_that_asked_about_its_budget_asks_nothing(answer: dict[str, Any] | None) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> int | str:
        await think(1)
        try:
            return await think(2)
        except StepFailed as error:
            return error.type

    history = about_its_budget(app, agent, answer, budget=Budget(usd=1))
    acted.clear()

    outcome = replayed(app, history)

    assert (outcome.same, outcome.differences, acted) == (True, (), [])


# -- transactions --------------------------------------------------------------------------------------------


def test_a_replay_takes_transactions_from_the_record_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    app = App("own", store=f"sqlite:///{path}?synchronous=off")

    @app.agent
    async def agent() -> str:
        count = await move(7)
        try:
            await fail()
        except StepFailed as error:
            return f"{count} {error.message}"
        return "no"

    async def begin() -> None:
        async with app:
            """It makes its own tables first."""

    asyncio.run(begin())
    connection = sqlite3.connect(path)
    connection.execute("create table moves (cents int)")
    connection.commit()
    history = recorded(app, agent)
    acted.clear()
    outcome = replayed(app, history)

    assert (outcome.same, acted) == (True, [])
    assert connection.execute("select * from moves").fetchall() == [(7,)]
    connection.close()


def test_a_replay_stops_at_a_transaction_that_is_not_on_record_or_goes_on_with_an_answer() -> None:
    app, later = fresh_app(), fresh_app()

    @app.agent(name="agent")
    async def before() -> int:
        return await think(1)

    @later.agent(name="agent")
    async def after() -> int:
        return await think(1) + await move(7)

    history = recorded(app, before)
    acted.clear()

    assert findings(replayed(later, history)) == [("would run now", 1, "move")]
    outcome = replayed(later, history, answers={"move": lambda cents: cents})
    assert [finding for finding, _, _ in findings(outcome)] == ["would run now", "other result"]
    assert acted == []


def test_what_was_recorded_on_a_stage_is_replayed_as_well() -> None:
    app = with_sinks("bills")

    @app.agent
    async def agent() -> int:
        await perdure.deliver("orders", "tea")
        return await move(await think(7))

    with rehearse(app, crash_after("move"), crash_after("think")) as stage:
        stage.database.execute("create table moves (cents int)")
        stage.answer("budget", {"raise_to": {"usd": 2}})
        handle = stage.start(agent, budget=Budget(usd=0.5))
        assert stage.play(handle.result) == 1
        stage.assert_delivered_once()
        history = stage.play(lambda: record_history(app, handle.run_id))
    acted.clear()

    outcome = replayed(app, history)

    assert (outcome.same, outcome.records, acted) == (True, 3, [])
