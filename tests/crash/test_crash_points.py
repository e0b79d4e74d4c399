"""The public enumeration itself: it sees what comes to another end, and says so; and the faults that it is made of."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, Handle, UsageError
from perdure.errors import StoreUnavailable
from perdure.store import open_url
from perdure.testing.crashpoints import Fault, FaultyStore, crash_points
from tests.support import children
from tests.support.agents import note

app = App("points")

VARIABLE = "PERDURE_TEST_POINTS"


@app.agent
async def durable(word: str) -> str:
    return await note(word + await note("b"))


@app.agent(durability="sync")
async def forgetful(word: str) -> str:
    """Asks the world, outside of a step, how often it was here before."""
    visits = Path(os.environ[VARIABLE], perdure.current().thread_id)
    visits.write_text((visits.read_text() if visits.exists() else "") + ".")
    await note(word)
    return word + visits.read_text()


@app.agent
async def lead(words: list[str]) -> list[str]:
    """Starts others, on threads that get their names from their runs."""
    here = perdure.current()
    team = [await app.start(durable, word, key=f"{here.run_id}/{word}") for word in words]
    return [await handle.result(20) for handle in team]


async def play_durable(app: App) -> None:
    assert await (await app.start("durable", "a", key="once")).result(20) == "AB"


async def play_lead(app: App) -> None:
    assert await (await app.start("lead", ["a", "c"], key="once")).result(20) == ["AB", "CB"]


async def play_forgetful(app: App, name: str) -> None:
    handle: Handle[Any] = await app.start("forgetful", "a", key=name, thread_id=name, queue=name)
    await handle.result(20)


async def play_twice(app: App) -> None:
    """Without a key, a life after a crash starts another run."""
    await (await app.start("durable", "a", thread_id="t")).result(20)


async def play_wrong(app: App) -> None:
    assert await (await app.start("durable", "a", key="once")).result(20) == "something else"


def test_each_point_has_a_store_of_its_own_and_comes_to_the_same_end() -> None:
    children.context()
    report = crash_points(app, play_durable, verbs={"commit"})

    assert report.died == len(report.trials) >= 3
    (thread,) = report.end.threads
    assert [run.state for run in thread.runs] == ["completed"]


def test_runs_that_an_agent_starts_are_compared_by_their_places_and_not_by_their_ids() -> None:
    children.context()
    report = crash_points(app, play_lead, verbs={"start"}, moments=["lost"])

    assert len(report.end.threads) == 3 and report.died == len(report.trials)


def test_an_agent_that_depends_on_what_is_not_recorded_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    children.context()

    with pytest.raises(AssertionError, match=r"other ends at: .*after-commit-1(.|\n)*-.*'a\.'(.|\n)*\+.*'a\.\.'"):
        crash_points(app, play_forgetful, store=f"sqlite:///{tmp_path}/runs.db", verbs={"commit"})


def test_a_start_without_a_key_is_seen() -> None:
    children.context()
    with pytest.raises(AssertionError, match=r"other ends at: (.|\n)*ordinal=2"):
        crash_points(app, play_twice, verbs={"start"}, moments=["lost"])


def test_a_scenario_that_does_not_work_by_itself_says_so() -> None:
    children.context()
    with pytest.raises(AssertionError, match=r"undisturbed life ended with 1(.|\n)*something else"):
        crash_points(app, play_wrong)


def test_what_another_process_could_not_find_is_refused() -> None:
    async def inner(app: App) -> None: ...

    with pytest.raises(UsageError, match="at the top of a module"):
        crash_points(app, inner)
    with pytest.raises(UsageError, match="at the top of a module"):
        crash_points(App("nowhere"), play_durable)


@pytest.mark.parametrize(("moment", "done"), [("before", 0), ("lost", 1)])
def test_a_fault_that_one_survives_strikes_once_around_its_write(moment: Any, done: int) -> None:
    async def main() -> None:
        store = FaultyStore(open_url("memory://"), Fault(2, moment, dies=False, verbs=frozenset({"reserve_ids"})))
        opened = store.clone()
        await opened.open()
        first = await opened.reserve_ids(1)
        with pytest.raises(StoreUnavailable):
            await opened.reserve_ids(1)
        assert await opened.reserve_ids(1) == first + 1 + done
        assert len(store.struck) == 1 and store.writes == ("reserve_ids",) * (2 + done)
        await opened.close()

    asyncio.run(main())


def test_a_claim_that_gets_nothing_is_no_write() -> None:
    async def main() -> None:
        made = App("faults", store="memory://")
        made.agent(durable.fn)
        store = FaultyStore(made._store)
        made._store = store  # type: ignore[assignment]
        async with made, made.worker(poll_s=0.01):
            assert await (await made.start("durable", "a")).result(20) == "AB"
        assert store.writes.count("claim") == 1

    asyncio.run(main())
