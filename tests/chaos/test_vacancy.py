"""Chaos keeps off a store that others use, and leaves nothing behind where it could not begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from perdure.cli.root import cli
from perdure.errors import UsageError
from perdure.store import open_url
from perdure.testing.chaos.agents import app_on
from perdure.testing.chaos.vacancy import check_vacant

CHAOS = "chaos-20260101-120000-00ff"


@asynccontextmanager
async def used(folder: Path, *, queue: str, worker: str | None = None) -> AsyncIterator[str]:
    """A store with a run that is queued and, if it has a name, a worker that does not serve it."""
    url = f"sqlite:///{folder}/runs.db"
    async with app_on(url) as app:
        await app.start("fan", 1, queue=queue, tags=[queue])
        if worker is None:
            yield url
        else:
            async with app.worker(name=worker, deployment="one", queues=["another"]):
                yield url


async def check(url: str) -> None:
    store = open_url(url)
    await store.open()
    try:
        await check_vacant(store)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("queue", "worker", "says"),
    [
        ("default", None, "agent fan is queued"),
        (CHAOS, "mine", "worker 'mine'"),
        (CHAOS, f"{CHAOS} worker-1", f"another chaos is at work on this store: {CHAOS};"),
    ],
)
def test_a_store_in_use_is_refused_with_the_remedy(tmp_path: Path, queue: str, worker: str | None, says: str) -> None:
    async def main() -> None:
        async with used(tmp_path, queue=queue, worker=worker) as url:
            with pytest.raises(UsageError, match="--force") as refused:
                await check(url)
            assert says in str(refused.value)

    asyncio.run(main())


def test_what_an_earlier_chaos_has_left_is_in_nobodys_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with used(tmp_path, queue=CHAOS) as url:
            await check(url)

    asyncio.run(main())


def test_the_command_refuses_a_store_in_use_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> str:
        async with used(tmp_path, queue="default") as url:
            return url

    url = asyncio.run(main())
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    in_use = CliRunner().invoke(cli, ["chaos", "--store", url])
    away = CliRunner().invoke(cli, ["chaos", "--store", "postgresql://u@127.0.0.1:1/x"])

    assert (in_use.exit_code, away.exit_code) == (2, 5)
    assert list(folder.iterdir()) == []
