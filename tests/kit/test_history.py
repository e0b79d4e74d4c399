"""Histories: read from every store, kept in files, and read again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perdure import Again, App, NotFound, UsageError, now, step
from perdure.core.records import Kind
from perdure.testing import History, crash_after, crash_in, record_history, rehearse, replay
from tests.kit.recorded import recorded, replayed
from tests.runtime.world import fresh_app, working
from tests.support import stores

KEPT = Path(__file__).with_name("history-1.json")
"""A history in the first version of the format: every later perdure reads it."""


@dataclass
class Notes:
    lines: list[str] = field(default_factory=list)


@step
async def look_up(topic: str) -> list[str]:
    return [f"{topic} {number}" for number in range(3)]


@step
async def book(size: int) -> bytes:
    return bytes(size)


def library(app: App) -> Any:
    """The agent that the kept history is of."""

    @app.agent
    async def read(topic: str, pages: int, *, state: Notes) -> int | Again:
        found = await asyncio.gather(look_up(topic), look_up(topic.upper()))
        state.lines += [line * 40 for lines in found for line in lines]
        if pages:
            return Again(topic, pages - 1)
        return len(await book(33_000)) + now().year * 0 + len(state.lines)

    return read


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    app = fresh_app()
    history = recorded(app, library(app), "tea", 3)

    history.save(tmp_path / "run.json")

    assert History.load(tmp_path / "run.json") == history
    assert history.run_id == "r2"
    assert any(blob.data == b"\xc5\x80\xe8" + bytes(33_000) for blob in history.blobs)


def test_a_history_of_the_first_version_is_read_and_replayed() -> None:
    history = History.load(KEPT)
    app = fresh_app()
    library(app)

    outcome = replayed(app, history)

    outcome.assert_same()
    assert (outcome.super_steps, outcome.records) == (4, 10)


@pytest.mark.parametrize("kind", stores.PARAMETERS)
def test_every_store_gives_a_history_that_replays(kind: str, tmp_path: Path) -> None:
    app = App("library", store=stores.fresh_url(kind, tmp_path))
    agent = library(app)

    recorded(app, agent, "tea", 2, thread_id="shelf")
    second = recorded(app, agent, "coffee", 2, thread_id="shelf")

    assert second.before is not None
    replayed(app, second).assert_same()


def test_the_history_of_an_unfinished_run_is_as_far_as_it_has_come() -> None:
    app = fresh_app()
    agent = library(app)

    async def main() -> History:
        async with app:
            return await record_history(app, (await app.start(agent, "tea", 1)).run_id)

    history = asyncio.run(main())

    assert [(row.super_step, row.kind) for row in history.log] == [(1, Kind.BOUNDARY)]
    assert history.super_steps[0].end is None


def test_tries_are_part_of_it() -> None:
    app = fresh_app()
    tries: list[int] = []

    @step(retry=2)
    async def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            error = ConnectionError("gone")
            error.retry_after = 0  # type: ignore[attr-defined]
            raise error

    @app.agent
    async def agent() -> None:
        await flaky.options(retry=2)()

    history = recorded(app, agent)

    assert [(each.key, each.attempt) for each in history.attempts if each.error] == [("flaky", 1)]


def test_a_run_that_is_not_there_is_not_found() -> None:
    app = fresh_app()
    library(app)

    async def main() -> None:
        async with working(app):
            await record_history(app, "r77")

    with pytest.raises(NotFound, match="no run r77"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not a run's history"),
        ("[]", "is not a run's history"),
        ('{"runs": []}', "is not a run's history"),
        ('{"format": "perdure.history", "version": 2}', "reads 'perdure.history' up to version 1"),
        ('{"format": "perdure.other", "version": 1}', "is 'perdure.other'"),
        ('{"format": "perdure.history", "version": 1}', "damaged history"),
    ],
)
def test_a_file_that_is_no_history_is_said_to_be_none(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)

    with pytest.raises(UsageError, match=message):
        History.load(path)


def test_a_history_without_its_blobs_does_not_load_instead_of_breaking(tmp_path: Path) -> None:
    document = json.loads(KEPT.read_text())
    document["blobs"] = []
    path = tmp_path / "poor.json"
    path.write_text(json.dumps(document))
    app = fresh_app()
    library(app)

    outcome = asyncio.run(replay(app, History.load(path)))

    assert "does not load" in {each.finding.value for each in outcome.differences}
    assert "are missing" in str(outcome)


@pytest.mark.parametrize("fault", [crash_in, crash_after])
def test_a_run_that_lost_its_workers_replays_like_any_other(fault: Any) -> None:
    app = fresh_app()
    agent = library(app)

    async def scene() -> History:
        handle = await app.start(agent, "tea", 2)
        await handle.result()
        return await record_history(app, handle.run_id)

    with rehearse(app, fault("look_up", nth=2, times=2), fault("book")) as stage:
        history = stage.play(scene)

    assert stage.crashes >= 2
    replayed(app, history).assert_same()
