"""Replays of runs that waited: what came is on record, where they wait they stand, and nothing leaves a replay."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Again, App, Default, RunCancelled, RunFailed
from perdure.core.records import RunState
from perdure.testing import History, Rehearsal, Replayed, record_history, rehearse, replay
from perdure.testing.replaying import Finding

Play = Callable[[Rehearsal, Any], Any]
"""What people do after a run was started; what is returned does not matter."""


@dataclass
class Notes:
    lines: list[str]


@perdure.step
async def note(word: str) -> str:
    return word


def on(app: App, agent: Any, **options: Any) -> Any:
    """Another version of an agent's code."""
    return app.agent(name="agent", **options)(agent)


def fresh() -> App:
    return App("waits", store="memory://")


def recorded(app: App, agent: Any, *args: Any, play: Play | None = None, **options: Any) -> History:
    """The history of a run on a stage, after people have done this."""
    with rehearse(app) as stage:
        handle = stage.start(agent, *args, **options)
        stage.advance("1m")
        if play is not None:
            play(stage, handle)
        history = stage.play(lambda: record_history(app, handle.run_id))
    return through_its_file(history)


def through_its_file(history: History) -> History:
    """As it comes from production."""
    with tempfile.TemporaryDirectory() as folder:
        history.save(Path(folder, "run.json"))
        return History.load(Path(folder, "run.json"))


def ended(stage: Rehearsal, handle: Any) -> None:
    """See the run to its end."""
    try:
        stage.play(handle.result)
    except (RunFailed, RunCancelled):
        return


def replayed(app: App, history: History, **options: Any) -> Replayed:
    return asyncio.run(replay(app, history, **options))


def findings(outcome: Replayed) -> list[tuple[Finding, str]]:
    return [(each.finding, each.where) for each in outcome.differences]


async def everything(item: str) -> list[Any]:
    """Every wait and every verb that sends, asks or starts."""
    me = perdure.current().thread_id
    await perdure.sleep("2h")
    await perdure.sleep_until("2027-03-01T00:00+00:00")
    found = [await perdure.interrupt({"item": item}, name="approve", schema=bool)]
    await perdure.send(me, {"to": "myself"})
    found.append(await perdure.receive())
    child = await perdure.start("helper", item)
    found.append(await child)
    stopped = await perdure.start("helper", "for ever")
    await stopped.cancel("enough")
    try:
        await stopped
    except RunCancelled:
        found.append("cancelled")
    try:
        async with perdure.timeout("1h"):
            await perdure.receive()
    except TimeoutError:
        found.append("late")
    try:
        await perdure.interrupt("nobody?", timeout="1d")
    except TimeoutError:
        found.append(await perdure.interrupt("which?", name="which", timeout="1d", on_timeout=Default("none")))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(perdure.sleep(hours * 3600)) for hours in (3, 1)]
        found.append(await note("meanwhile"))
    return [*found, len(tasks)]


async def helper(item: str) -> str:
    if item == "for ever":
        await perdure.receive()
    await perdure.sleep(60)
    return f"helped with {item}"


def answered(stage: Rehearsal, handle: Any) -> None:
    stage.answer("approve", True)
    ended(stage, handle)


def test_a_run_that_waited_for_everything_is_replayed_from_its_record() -> None:
    app = fresh()
    agent = on(app, everything)
    app.agent(helper)

    history = recorded(app, agent, "tea", play=answered)
    outcome = replayed(app, history)

    assert history.run.state is RunState.COMPLETED
    outcome.assert_same()
    assert outcome.records == outcome.recorded > 15


def stop_at(days: int) -> Play:
    return lambda stage, handle: stage.advance(days * 86_400)


@pytest.mark.parametrize("wait", ["sleep", "interrupt", "receive", "result", "timeout", "task", "retry"])
def test_a_run_that_stands_at_a_wait_stops_there_in_a_replay(wait: str) -> None:
    app = fresh()

    async def waiting() -> str:
        await note("before")
        match wait:
            case "sleep":
                await perdure.sleep("30d")
            case "interrupt":
                await perdure.interrupt({"large": "x" * 100_000})
            case "receive":
                await perdure.receive()
            case "result":
                await perdure.call("helper", "for ever")
            case "timeout":
                async with perdure.timeout("30d"):
                    await note("inside")
                    await perdure.receive()
            case "task":
                await asyncio.gather(note("branch"), perdure.sleep("30d"), perdure.receive())
            case _:
                await retried()
        return "not reached"

    @perdure.step(retry=perdure.Retry(attempts=2, delay_s=86_400 * 9, max_delay_s=86_400 * 9, jitter=0))
    async def retried() -> None:
        raise ConnectionError("down")

    agent = on(app, waiting)
    app.agent(helper)

    history = recorded(app, agent, play=stop_at(1))
    outcome = replayed(app, history)

    assert history.run.state is RunState.WAITING
    outcome.assert_same()
    assert outcome.recorded == outcome.records >= 1
    assert "waiting: the code of app waits does the same" in str(outcome)


def test_nothing_is_sent_asked_started_or_cancelled_by_a_replay() -> None:
    app = fresh()

    async def brief() -> str:
        return await note("done")

    async def busy() -> str:
        word = await note("done")
        await perdure.start("agent")
        return word

    async def talking() -> str:
        word = await note("done")
        await perdure.send("somebody", "hello")
        return word

    async def asking() -> str:
        word = await note("done")
        await perdure.interrupt("may I?", name="may")
        return word

    history = recorded(app, on(app, brief), play=ended)

    for code, key in ((busy, "start:agent"), (talking, "send"), (asking, "may")):
        newer = fresh()
        on(newer, code)
        outcome = replayed(newer, history)
        assert findings(outcome) == [(Finding.NEW, key)]
        assert outcome.ok
        assert asyncio.run(_nothing_in(newer))


async def _nothing_in(app: App) -> bool:
    async with app:
        return not await app.runs() and not await app.interrupts(state=None)


def test_answers_go_on_behind_what_is_not_on_record() -> None:
    app = fresh()

    async def brief() -> str:
        return await note("done")

    async def longer() -> str:
        word = await note("done")
        await perdure.sleep("1d")
        if not await perdure.interrupt("may I?", name="may", schema=bool):
            return "no"
        got = await perdure.receive(Notes)
        helped = await perdure.call("helper", "tea")
        try:
            await perdure.receive(timeout=60)
        except TimeoutError:
            return f"{word}, {got.lines}, {helped}"
        return "no"

    history = recorded(app, on(app, brief), play=ended)
    newer = fresh()
    on(newer, longer)
    newer.agent(helper)

    outcome = replayed(
        newer,
        history,
        answers={
            "sleep": None,
            "may": True,
            "receive": Notes(["a"]),
            "result:helper": lambda run_id: f"{run_id} helped",
            "receive#2": perdure.TimedOut("no message came in time"),
        },
    )

    (result,) = [each for each in outcome.differences if each.finding is Finding.RESULT]
    assert result.now == "\"done, ['a'], r0 helped\""
    assert {where for finding, where in findings(outcome) if finding is Finding.NEW} == {
        "sleep", "may", "receive", "start:helper", "result:helper", "receive#2",
    }  # fmt: skip


@pytest.mark.parametrize("answered", [True, False])
def test_a_question_with_another_payload_is_found(answered: bool) -> None:
    app = fresh()

    async def asking(cents: int) -> bool:
        await note("before")
        return bool(await perdure.interrupt({"cents": cents}, name="approve"))

    async def asks_more(cents: int) -> bool:
        await note("before")
        return bool(await perdure.interrupt({"cents": cents, "currency": "EUR"}, name="approve"))

    def play(stage: Rehearsal, handle: Any) -> None:
        if answered:
            stage.answer("approve", True)
            ended(stage, handle)

    history = recorded(app, on(app, asking), 5, play=play)
    newer = fresh()
    on(newer, asks_more)

    outcome = replayed(newer, history)

    assert findings(outcome) == [(Finding.DIVERGED, "approve")]
    assert not outcome.ok
    assert "give a changed question another name" in str(outcome)


@pytest.mark.parametrize("args", [("send", "other text"), ("start", "milk")])
def test_a_message_or_a_child_with_other_arguments_diverges(args: tuple[str, str]) -> None:
    verb, other = args
    app = fresh()

    def code(word: str) -> Any:
        async def sending() -> str:
            if verb == "send":
                await perdure.send(perdure.current().thread_id, word)
            else:
                await perdure.call("helper", word)
            return "done"

        return sending

    app.agent(helper)
    history = recorded(app, on(app, code("tea")), play=ended)
    newer = fresh()
    newer.agent(helper)
    on(newer, code(other))

    outcome = replayed(newer, history)

    assert [finding for finding, _ in findings(outcome)] == [Finding.DIVERGED]


async def tidying(late: bool = False) -> str:
    await note("before")
    try:
        await perdure.sleep("30d")
    finally:
        await note("undone")
        if late:
            raise ValueError("no such order")
    return "slept"


def cancelled(stage: Rehearsal, handle: Any) -> None:
    stage.cancel(handle, "not needed")
    ended(stage, handle)


@pytest.mark.parametrize("late", [True, False])
def test_a_cancelled_run_is_interrupted_where_it_stood(late: bool) -> None:
    app = fresh()

    history = recorded(app, on(app, tidying), late, play=cancelled)
    outcome = replayed(app, history)

    assert history.run.state is RunState.CANCELLED
    outcome.assert_same()
    assert outcome.records == outcome.recorded == 2


def test_code_that_cleans_up_otherwise_after_a_cancellation_is_seen() -> None:
    app = fresh()

    async def careless(late: bool = False) -> str:
        await note("before")
        await perdure.sleep("30d")
        return "slept"

    history = recorded(app, on(app, tidying), True, play=cancelled)
    newer = fresh()
    on(newer, careless)

    outcome = replayed(newer, history)

    assert findings(outcome) == [(Finding.UNUSED, "note#2"), (Finding.ERROR, "end")]


def test_a_run_that_was_cancelled_before_it_began_is_replayed() -> None:
    app = fresh()

    history = recorded(app, on(app, tidying), delay="1d", play=cancelled)

    assert history.run.attempt == 0
    replayed(app, history).assert_same()


def test_a_run_past_its_deadline_is_interrupted_where_it_stood() -> None:
    app = fresh()

    history = recorded(app, on(app, tidying), deadline="1d", play=ended)
    outcome = replayed(app, history)

    assert history.run.state is RunState.FAILED
    outcome.assert_same()
    assert outcome.records == 2


def test_a_run_that_was_cancelled_for_want_of_an_answer_is_replayed() -> None:
    app = fresh()

    async def strict() -> str:
        try:
            await perdure.interrupt("may I?", timeout="1d", on_timeout="cancel")
        finally:
            await note("undone")
        return "asked"

    history = recorded(app, on(app, strict), play=ended)
    outcome = replayed(app, history)

    assert history.run.state is RunState.CANCELLED
    outcome.assert_same()
    assert outcome.records == 2


def test_a_forked_run_is_replayed_from_where_it_began() -> None:
    app = fresh()

    async def rounds(number: int, *, state: dict[str, int]) -> int | Again:
        state[str(number)] = number
        await note(f"{number}")
        await perdure.sleep("1h")
        return Again(number - 1) if number else len(state)

    agent = on(app, rounds)
    with rehearse(app) as stage:
        stage.run(agent, 3, thread_id="first")
        handle = stage.play(lambda: app.thread("first").fork(3))
        stage.play(handle.result)
        history = stage.play(lambda: record_history(app, handle.run_id))

    outcome = replayed(app, history)

    outcome.assert_same()
    assert [each.number for each in history.super_steps] == [3, 4]


def test_a_branch_that_lost_a_race_stands_nowhere() -> None:
    app = fresh()

    async def racing() -> str:
        tasks = [asyncio.ensure_future(perdure.sleep("1h")), asyncio.ensure_future(perdure.receive())]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return f"{len(done)} of {len(tasks)}"

    history = recorded(app, on(app, racing), play=ended)

    replayed(app, history).assert_same()
