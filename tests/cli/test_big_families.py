"""Runs with many children, and what pages say of questions: a tally and the text, not lists of ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

import perdure
from perdure import App
from perdure.cli.root import cli
from tests.cli.conftest import Run
from tests.runtime.world import parked, until, working

CHILDREN = 30


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a store with a run that has many children, and its name."""
    url = f"sqlite:///{tmp_path_factory.mktemp('family')}/family.db"
    yield url, asyncio.run(_make(url))


async def _make(url: str) -> str:
    app = App("family", store=url)

    @app.agent
    async def child(number: int) -> int:
        if number % 10 == 0:
            await perdure.interrupt({"child": number}, name="really")
        if number == 7:
            raise ValueError("not this one")
        return number

    @app.agent
    async def parent() -> None:
        children = [await perdure.start(child, number) for number in range(CHILDREN)]
        await asyncio.gather(*children, return_exceptions=True)

    @app.agent
    async def late() -> None:
        await perdure.sleep("1h")

    async with working(app) as worker:
        handle = await app.start(parent, thread_id="family")
        await until(lambda: _are_there(app), "the children have ended or asked")
        await parked(handle, worker)
        over = await app.start(late, thread_id="late", deadline=0.05)
        with pytest.raises(perdure.RunFailed):
            await over.result(timeout=20)
    return handle.run_id


async def _are_there(app: App) -> bool:
    states = [str(run.state) for run in await app.runs(agent="child")]
    return len(states) == CHILDREN and states.count("waiting") == 3 and states.count("failed") == 1


@pytest.fixture
def at_family(family: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(*arguments: str) -> Result:
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("PERDURE_STORE", family[0])
        return CliRunner().invoke(cli, arguments, prog_name="perdure")

    return run


def test_many_children_are_a_tally_and_a_few_that_need_somebody(at_family: Run, family: tuple[str, str]) -> None:
    page = at_family("runs", "show", family[1]).stdout

    assert f"{CHILDREN} children: 26 completed, 3 waiting, 1 failed" in page
    listed = page[page.index("children: ") :].splitlines()[2:7]
    assert [line.split()[1] for line in listed] == ["failed", "waiting", "waiting", "waiting", "completed"]
    assert f"and 25 more: perdure runs list --parent {family[1]}" in page
    assert "27 more children started; --all shows them" in page
    assert "more results of children; --all shows them" in page
    assert len(page.splitlines()) < 60
    whole = at_family("runs", "show", family[1], "--all").stdout
    assert whole.count("  ✓ start:child") == CHILDREN
    assert "shows them" not in whole


def test_lists_say_what_was_asked(at_family: Run) -> None:
    assert "answer to i" in (listed := at_family("runs", "list", "--state", "waiting", "--agent", "child").stdout)
    assert '{"child": 20}' in listed
    cancelled = at_family("fork", "family", "--json")
    assert cancelled.exit_code == 0


def test_the_dropped_deadline_of_a_run_that_is_sent_on_is_told(at_family: Run) -> None:
    document = at_family("runs", "list", "--thread-id", "late").stdout
    name = next(word for word in document.split() if word.startswith("r") and word[1:].isdigit())

    told = at_family("retry", name).stdout

    assert "its deadline, 20" in told and "is dropped: it may take as long as it needs" in told


@pytest.mark.parametrize("listing", [("runs", "list"), ("interrupts", "list"), ("messages", "dead")])
def test_the_option_of_the_thread_has_one_spelling_and_the_old_one_works(
    at_family: Run, listing: tuple[str, str]
) -> None:
    said = at_family(*listing, "--help").stdout
    assert "--thread-id THREAD" in said and "--thread " not in said
    for option in ("--thread-id", "--thread"):
        assert at_family(*listing, option, "family").exit_code == 0
