"""What a replay says to people: verdicts, remedies, and what it refuses to judge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure import Again, App, UsageError
from perdure.core.records import Kind, RunState
from perdure.testing import History, replay
from perdure.testing.replaying import Finding, IncompleteHistory
from tests.kit.recorded import changed, executed, findings, recorded, replayed, search, shop, two_searches
from tests.runtime.world import fresh_app


@perdure.step
async def seek(query: str) -> list[str]:
    return await search.fn(query)


async def rounds(query: str, left: int = 2) -> str | Again:
    found = await search(query)
    return Again(query, left - 1) if left else found[0]


async def renamed_rounds(query: str, left: int = 2) -> str | Again:
    found = await seek(query)
    return Again(query, left - 1) if left else found[0]


def three_rounds() -> tuple[History, App]:
    """A run of three super-steps with a step each, and an app for the code that comes after."""
    app = fresh_app()
    return recorded(app, app.agent(name="agent")(rounds), "tea"), fresh_app()


def test_a_renamed_step_is_said_to_be_done_and_paid_again() -> None:
    history, app = three_rounds()
    app.agent(name="agent")(renamed_rounds)
    executed.clear()

    outcome = replayed(app, history)

    page = str(outcome)
    assert (outcome.records, outcome.recorded, executed) == (0, 3, [])
    assert "0 of 3 recorded steps are taken: all are done (and paid) again" in page
    assert "steps that would run again: seek in super-steps 1-3, on record as search" in page
    assert "does again what is on record" in page
    assert page.count("would run now") == 1
    assert [each.renamed for each in outcome.differences] == ["search"] * 3


def test_a_renamed_step_is_seen_where_the_run_has_not_ended_too() -> None:
    history, app = three_rounds()
    log = tuple(row for row in history.log if row.super_step < 3)
    cut = msgspec.structs.replace(history, run=msgspec.structs.replace(history.run, state=RunState.RUNNING), log=log)
    app.agent(name="agent")(renamed_rounds)

    assert [each.super_step for each in replayed(app, cut).differences] == [1, 2]


def test_a_new_step_before_the_recorded_ones_is_not_taken_for_a_renamed_one() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        await seek("first of all")
        return await two_searches()

    page = str(replayed(app, history))

    assert "0 of 3 recorded steps are taken; where the code leaves the record, the replay of a super-step ends" in page
    assert "again" not in page


@pytest.mark.parametrize("lost", ["all", "first", "middle", "end"])
def test_an_incomplete_history_is_refused(lost: str) -> None:
    history, app = three_rounds()
    app.agent(name="agent")(rounds)
    kept = {
        "all": lambda row: False,
        "first": lambda row: row.super_step != 1,
        "middle": lambda row: row.super_step != 2,
        "end": lambda row: row.kind is not Kind.ENDED,
    }[lost]
    cut = msgspec.structs.replace(history, log=tuple(row for row in history.log if kept(row)))

    with pytest.raises(IncompleteHistory, match=r"is incomplete: it lacks .*; write it again with `perdure runs"):
        replayed(app, cut)


def test_an_agent_that_sleeps_is_replayed_at_once() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def sleeper(query: str, left: int = 2) -> str | Again:
        await asyncio.sleep(3600)  # it passes in virtual time
        async with asyncio.timeout(7200):
            found = await search(query)
            await asyncio.to_thread(len, query)
            await asyncio.sleep(3600)  # it passes in virtual time
        return Again(query, left - 1) if left else found[0]

    replayed(app, history, timeout=20).assert_same()


def test_a_step_that_is_called_in_another_task_is_done_again_too() -> None:
    history, app = three_rounds()

    @app.agent
    async def agent(query: str, left: int = 2) -> str:
        (found,) = await asyncio.gather(search(query))
        return found[0]

    assert "1/search in super-steps 1-3, on record as search" in str(replayed(app, history))


def test_what_never_goes_on_is_said_with_its_line() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def waiter(query: str, left: int = 2) -> None:
        await search(query)
        await asyncio.gather(asyncio.sleep(5), asyncio.Event().wait())  # it passes in virtual time

    outcome = replayed(app, history)

    assert findings(outcome) == [("does not end", number, "end") for number in (1, 2, 3)]
    assert "in waiter: await asyncio.gather(asyncio.sleep(5), asyncio.Event().wait())" in outcome.differences[0].now
    assert str(outcome).count("Make what the agent waits for there a step") == 1


def test_what_goes_round_for_ever_is_given_up_and_the_limit_is_one_for_all_super_steps() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def poller(query: str, left: int = 2) -> None:
        while True:
            await asyncio.sleep(1)  # it passes in virtual time

    outcome = replayed(app, history, timeout=0.05)

    assert findings(outcome) == [("does not end", 1, "end"), ("does not end", 2, "replay")]
    assert "the limit of 0.05 s ran out" in str(outcome) and "--timeout" in str(outcome)


def test_code_that_refuses_to_be_cancelled_ends_the_replay_all_the_same() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def stubborn(query: str, left: int = 2) -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

    assert [each.finding for each in replayed(app, history).differences] == [Finding.STUCK] * 3


def test_a_connection_outside_of_a_step_ends_the_replay_of_its_super_step() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def caller(query: str, left: int = 2) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    outcome = replayed(app, history)

    assert {each.finding for each in outcome.differences} == {Finding.WORLD}
    assert outcome.differences[0].now == "opens a connection outside of a step"
    assert outcome.ok and "make it a step" in str(outcome)


def test_a_divergence_is_told_once_with_what_to_do_before_a_deploy() -> None:
    history, app = three_rounds()

    @app.agent(name="agent")
    async def shouting(query: str, left: int = 2) -> str | Again:
        found = await search(query.upper())
        return Again(query, left - 1) if left else found[0]

    page = str(replayed(app, history))

    assert page.count("DIVERGED") == 1 and "\n1-3 " in page
    assert page.count("step 'search' is on record with other arguments") == 1
    assert "ignore_args=True" in page and "PERDURE_DEPLOYMENT" in page and "release the run" not in page


def test_a_parameter_that_does_not_load_is_named_with_its_remedy() -> None:
    history, new = three_rounds()
    typed, gone = fresh_app(), fresh_app()

    @new.agent(name="agent")
    async def with_new(query: str, left: int = 2, *, size: int) -> None: ...

    @typed.agent(name="agent")
    async def with_type(query: int, left: int = 2) -> None: ...

    @gone.agent(name="agent")
    async def without() -> None: ...

    for app, where, remedy in (
        (new, "parameter 'size'", "Give parameter 'size' a default"),
        (typed, "parameter 'query'", "Let parameter 'query' take what is recorded"),
        (gone, "arguments", "as many arguments as are recorded"),
    ):
        outcome = replayed(app, history)
        assert outcome.differences[0].where == where
        assert str(outcome).count(remedy) == 1


def test_below_an_exception_is_nothing_that_follows_from_it() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        raise KeyError("milk")

    assert findings(replayed(app, history)) == [("raises now", 1, "end")]


def test_the_text_of_a_failed_assertion_begins_with_the_verdict() -> None:
    history, app = changed(two_searches)

    @app.agent
    async def agent() -> str:
        raise KeyError("milk")

    for gate in (replayed(app, history).assert_ok, replayed(app, history).assert_same):
        with pytest.raises(AssertionError, match=r"\Ar\d+, a run of agent agent"):
            gate()


def test_an_answer_that_nothing_asks_for_is_refused_with_a_guess() -> None:
    history, app = three_rounds()
    app.agent(name="agent")(renamed_rounds)

    with pytest.raises(UsageError, match=r"answers= has 'seeek'.*did you mean 'seek'\?"):
        replayed(app, history, answers={"seeek": []})
    with pytest.raises(UsageError, match=r"answers= has 'other'.*called: seek"):
        replayed(app, history, answers={"other": []})


def test_an_answer_for_another_history_of_the_gate_is_none_of_this_one_s() -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea")

    replayed(app, history, answers={"discount": 10, "search": []}).assert_same()


def test_a_history_may_be_given_as_its_file(tmp_path: Path) -> None:
    app = fresh_app()
    history = recorded(app, shop(app), "tea")
    history.save(tmp_path / "r1.json")

    for path in (tmp_path / "r1.json", str(tmp_path / "r1.json")):
        asyncio.run(replay(app, path)).assert_same()


def test_what_is_no_replay_is_refused_at_the_door() -> None:
    app = fresh_app()
    history: Any = recorded(app, shop(app), "tea")
    swapped: Any = app

    for wrong, message in (
        (lambda: replay(history, swapped), "takes an App, then a History"),
        (lambda: replay(app, history, answers=["search"]), "answers= is a dict"),  # type: ignore[arg-type]
        (lambda: replay(app, history, timeout=0), "more than 0 seconds"),
        (lambda: replay(app, "missing.json"), "missing.json cannot be read"),
    ):
        with pytest.raises(UsageError, match=message):
            asyncio.run(wrong())
