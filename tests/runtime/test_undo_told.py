"""Undos that failed, and children that did: who waits for the run is told, and told what helps."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import RunCancelled, RunFailed, telemetry
from perdure.runtime.effect import code_of
from perdure.runtime.frames import agent_frame
from tests.runtime.paying import ledger, run, states
from tests.runtime.world import fresh_app


async def keeps_the_money(receipt: str) -> None:
    raise ConnectionResetError("the provider is closed")


async def gives_it_back(receipt: str) -> None:
    """It works."""


async def charge(what: str) -> str:
    return what


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("perdure.runtime.undoing.backoff_s", lambda *args: 0.0)
    told: list[str] = []
    deaf = telemetry.subscribe(lambda event, fields: told.append(event))
    yield told
    deaf()


def test_whoever_waits_for_a_run_hears_of_undos_that_failed(events: list[str]) -> None:
    app = fresh_app()
    first = perdure.effect(charge, name="first", undo=keeps_the_money)
    second = perdure.effect(charge, name="second", undo=gives_it_back)
    reached = asyncio.Event()

    @app.agent
    async def agent(*, waits: bool = False) -> None:
        await first("a")
        await second("b")
        reached.set()
        if waits:
            await perdure.interrupt("go on?")
        raise ValueError("no")

    async def main() -> None:
        handle = await app.start(agent)
        with pytest.raises(
            RunFailed, match=r"1 of what it had done could NOT be undone \(.*retry r\d+ --undo"
        ) as failed:
            await handle.result(timeout=20)
        assert "send it on" not in str(failed.value)
        assert sorted(await states(app)) == ["undo_failed", "undone"]
        reached.clear()
        handle = await app.start(agent, waits=True)
        await reached.wait()
        await handle.cancel()
        with pytest.raises(RunCancelled, match="could NOT be undone"):
            await handle.result(timeout=20)

    run(app, main)
    assert [events.count(f"effect.{each}") for each in ("undo_failed", "undo_given_up", "undone")] == [10, 2, 2]


def test_a_run_whose_effects_were_undone_is_not_said_to_be_sent_on(events: list[str]) -> None:
    app = fresh_app()
    only = perdure.effect(charge, name="only", undo=gives_it_back)

    @app.agent
    async def agent() -> None:
        await only("a")
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed, match="what it had done was undone") as failed:
            await (await app.start(agent)).result(timeout=20)
        assert "perdure retry" not in str(failed.value)

    run(app, main)


def test_an_undo_that_the_workers_code_does_not_have_is_given_up_at_once(
    events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = fresh_app()
    only = perdure.effect(charge, name="only", undo=gives_it_back)
    monkeypatch.setattr("perdure.runtime.undoing.effect_of", lambda code: None)

    @app.agent
    async def agent() -> None:
        await only("a")
        agent_frame("a test").super_step.used.clear()  # as if another worker had gone on with it
        raise ValueError("no")

    async def main() -> None:
        with pytest.raises(RunFailed):
            await (await app.start(agent)).result(timeout=20)
        [row] = await ledger(app)
        assert (row.state, row.undo_attempt) == ("undo_failed", 1)
        assert "knows no effect with an undo at" in str(row.note) and f"retry r{row.run} --undo" in str(row.note)

    run(app, main)


def test_a_run_that_ended_as_its_child_did_says_to_send_the_child_on_first() -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None:
        raise ValueError("no")

    @app.agent
    async def parent() -> None:
        await perdure.call(child)

    async def main() -> None:
        with pytest.raises(
            RunFailed, match=r"send it on with `perdure retry (r\d+)`, and then `perdure retry (?!\1)r\d+`"
        ):
            await (await app.start(parent)).result(timeout=20)

    run(app, main)


SCRIPT = """
import perdure
from perdure.runtime.effect import code_of

async def charge(): ...

print(code_of(charge, "charge"))
"""


@pytest.mark.parametrize("how", [["shop.py"], ["-m", "shop"]])
def test_an_effect_of_a_script_is_known_where_its_module_is_imported(how: list[str], tmp_path: Path) -> None:
    """`python shop.py` is killed, and `perdure worker shop:app` undoes what it had done."""
    (tmp_path / "shop.py").write_text(SCRIPT)

    told = subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "shop:charge"
    assert code_of(charge, "charge") == f"{__name__}:charge"
