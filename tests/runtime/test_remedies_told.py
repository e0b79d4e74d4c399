"""What an error or the log says to do: commands that lead to the app's own store, and verbs that are recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import App, RunFailed
from perdure.client.commands import command
from tests.runtime.world import fresh_app, working


def test_a_failed_run_of_a_store_of_its_own_is_told_with_commands_that_find_it(tmp_path: Path) -> None:
    app = App("own", store=f"sqlite:///{tmp_path}/own.db")

    @app.agent
    async def agent() -> None:
        raise ValueError("it ends with a full stop.")

    with pytest.raises(RunFailed) as failed:
        app.run(agent)

    said = f"`perdure retry {failed.value.run_id} --store {app.store_name}`"
    assert said in str(failed.value) and ".;" not in str(failed.value)


def test_the_usual_store_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_STORE", "postgresql://me:secret@box/app")

    assert command("runs list", "postgresql://me@box/app") == "`perdure runs list`"
    assert command("runs list", "memory://") == "`perdure runs list`"
    assert command("runs list", "sqlite:////a b.db") == "`perdure runs list --store 'sqlite:////a b.db'`"


def test_a_clients_verb_in_an_agents_code_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    app = fresh_app()

    @app.agent
    async def child() -> None:
        await perdure.receive()

    @app.agent
    async def agent() -> None:
        for _ in range(2):
            handle: Any = await app.start(child)
            await app.send(handle.thread_id, "hello")

    async def main() -> None:
        async with working(app):
            await (await app.start(agent)).result()

    asyncio.run(main())

    said = [line for line in caplog.messages if "is not recorded: a replay does it again" in line]
    assert [line.split()[0] for line in said] == ["app.start", "app.send"]
    assert "Use perdure.start there" in said[0]
