"""What people are told: of a program that waits, of a question that cannot be asked, of an await that was forgotten."""

from __future__ import annotations

import asyncio
import gc
import logging
from dataclasses import dataclass
from typing import Any

import pytest

import perdure
from perdure import App, Default, InvalidAnswer, NotSerializable, UsageError
from perdure.client import telling
from perdure.client.telling import Teller
from perdure.core.records import run_id
from tests.runtime.world import asked, fresh_app, parked, result_of, until, working


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of a program that looks all the time."""
    monkeypatch.setattr(telling, "LOOK_S", 0)
    caplog.set_level(logging.WARNING, "perdure")
    return caplog.messages


def test_a_crowded_inbox_does_not_keep_a_question_from_being_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telling, "LIST_ROWS_MAX", 5)
    app = fresh_app()

    @app.agent
    async def child() -> Any:
        return await perdure.interrupt(name="approve")

    @app.agent
    async def agent() -> Any:
        return await perdure.call(child)

    async def main() -> None:
        async with working(app) as worker:
            for _ in range(6):
                await parked(await app.start(child), worker)
            handle = await app.start(agent)
            await parked(handle, worker)
            (made,) = [run for run in await app.runs(agent=child) if run.parent == handle.run_id]
            (question,) = (await asked(app, app.handle(made.run_id))).values()
            teller = Teller(await app._client(), handle._id)
            for _ in range(3):
                await teller.tick()
            (line,) = [line for line in caplog.messages if line.startswith("run.waits")]
            assert f"an answer to {question} (approve)" in line

    asyncio.run(main())


def test_a_program_that_blocks_on_a_question_says_once_how_to_answer_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    monkeypatch.setattr(telling, "LOOK_S", 0)
    app = App("asks", store=f"sqlite:///{tmp_path}/asks.db")

    @app.agent
    async def child() -> Any:
        return await perdure.interrupt({"buy": "tea"}, name="approve")

    @app.agent
    async def agent() -> Any:
        return await perdure.call(child)

    async def main() -> list[str]:
        async with working(app) as worker:
            handle = await app.start(agent)
            await parked(handle, worker)
            question = (await asked_of_a_child(app))["approve"]
            teller = Teller(await app._client(), int(handle.run_id[1:]))
            for _ in range(3):
                await teller.tick()
            await app.resume(question, True)
            assert await handle.result(timeout=20) is True
            return [question, *(line for line in caplog.messages if line.startswith("run.waits"))]

    question, *lines = asyncio.run(main())
    (line,) = lines
    assert "agent=child" in line and "(approve)" in line
    assert f"`perdure resume {question} ANSWER --store sqlite:///{tmp_path}/asks.db` answers it" in line


async def asked_of_a_child(app: App) -> dict[str, str]:
    async def is_there() -> bool:
        return bool(await app.interrupts())

    await until(is_there, "the child asks")
    return {each.name: each.id for each in await app.interrupts()}


def test_app_run_tells_of_what_it_waits_for(
    told: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        await perdure.receive(timeout=0.6)

    monkeypatch.setattr(telling, "SOON_US", 0)
    with pytest.raises(perdure.RunFailed):
        app.run(agent)
    lines = [line for line in caplog.messages if line.startswith("run.waits")]
    assert len(lines) == 1
    assert "waits_for=a message" in lines[0] and "lives in this process alone" in lines[0]


def test_questions_of_others_are_not_told(told: list[str], caplog: pytest.LogCaptureFixture) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        await perdure.interrupt(name="mine")

    async def main() -> None:
        async with working(app):
            mine, other = await app.start(agent), await app.start(agent)
            await asked(app, mine)
            await asked(app, other)
            await parked(mine)
            teller = Teller(await app._client(), int(mine.run_id[1:]))
            for _ in range(2):
                await teller.tick()

    asyncio.run(main())
    assert len([line for line in caplog.messages if line.startswith("run.waits")]) == 1


@dataclass
class Order:
    """Nobody but its own code reads it."""

    item: str


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"schema": "bool"}, UsageError, r"is no schema of an answer. Give a type, such as bool"),
        ({"schema": True}, UsageError, r"is no schema of an answer"),
        ({"schema": ["yes", "no"]}, UsageError, r'"enum": \["yes", "no"\]'),
        ({"payload": {"order": object()}}, NotSerializable, r"payload of a question must be plain data.*\$\.order"),
        ({"payload": Order("tea")}, NotSerializable, r"dataclasses\.asdict"),
        (
            {"schema": bool, "timeout": 1, "on_timeout": Default("no")}, InvalidAnswer,
            r"Default\('no'\) is no answer to this question: at \$ its schema expects \{'type': 'boolean'\}",
        ),
        ({"timeout": 1, "on_timeout": Default(object())}, NotSerializable, r"on_timeout=Default"),
    ],
)  # fmt: skip
def test_a_question_that_cannot_be_asked_says_what_can(options: Any, error: type[Exception], says: str) -> None:
    app = fresh_app()

    @app.agent
    async def agent() -> None:
        with pytest.raises(error, match=f"(?s){says}"):
            await perdure.interrupt(**options)

    result_of(app, agent)


def test_lists_are_of_an_agent_by_itself_or_by_its_name() -> None:
    app = fresh_app()

    @app.agent
    async def asks() -> None:
        await perdure.interrupt()

    @app.agent
    async def other() -> None: ...

    async def main() -> None:
        async with working(app) as worker:
            handle = await app.start(asks)
            await (await app.start(other)).result(timeout=20)
            await parked(handle, worker)
            for agent in (asks, "asks"):
                assert [run.run_id for run in await app.runs(agent=agent)] == [handle.run_id]
                assert len(await app.interrupts(agent=agent)) == 1
            assert await app.interrupts(agent=other) == []

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_await_that_was_forgotten_in_an_agent_is_pythons_warning() -> None:
    app = fresh_app()

    @perdure.step
    async def work() -> None: ...

    @app.agent
    async def agent() -> None:
        perdure.sleep(1)  # type: ignore[unused-coroutine]
        perdure.interrupt("?")  # type: ignore[unused-coroutine]
        perdure.receive()  # type: ignore[unused-coroutine]
        perdure.send("t", 1)  # type: ignore[unused-coroutine]
        perdure.start("agent")  # type: ignore[unused-coroutine]
        perdure.call("agent")  # type: ignore[unused-coroutine]
        work()  # type: ignore[unused-coroutine]
        gc.collect()

    with pytest.warns(RuntimeWarning, match="never awaited") as warned:
        result_of(app, agent)
    said = {str(warning.message).split("'")[1] for warning in warned}
    assert said >= {"sleep", "interrupt", "receive", "send", "start", "call"}


def test_a_run_that_is_sent_on_past_its_deadline_has_none() -> None:
    app = fresh_app()
    times: list[int] = []

    @app.agent
    async def agent() -> str:
        times.append(1)
        if len(times) == 1:
            await perdure.sleep("1h")
        return run_id(1)

    async def main() -> None:
        async with working(app):
            handle = await app.start(agent, deadline=0.05)
            with pytest.raises(perdure.RunFailed):
                await handle.result(timeout=20)
            assert (await app.retry(handle.run_id)).deadline_at is None
            assert await handle.result(timeout=20)

    asyncio.run(main())
