"""The write was done, and the answer to it never came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.core.records import RunState
from perdure.testing.proxy import proxy
from perdure.testing.speech import Postgres
from tests.support import postgres
from tests.support.agents import app_on, survey_result
from tests.support.sidelog import SideLog
from tests.support.witness import all_runs, nothing_was_repeated_after_its_record

RUNS = 20


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("what", "pattern", "every"),
    [
        ("commits", r"\.(append|commit)\(", 3),
        ("claims", r"\.claim\(", 2),
        ("starts", r"\.start(_runs)?\(", 2),
        (
            "any write",
            r"\.(append|commit|commit_waits|claim|start_runs|reserve_ids|retire|give_back|take_over)\(|insert|update",
            4,
        ),
    ],
)
def test_c12_a_connection_lost_after_the_commit_repeats_nothing(
    tmp_path: Path, log: SideLog, what: str, pattern: str, every: int
) -> None:
    server = postgres.shared()
    schema = server.fresh_url().rpartition("=")[2]

    async def main() -> None:
        speech = Postgres()
        async with proxy(server.directory / f".s.PGSQL.{server.port}", speech=speech) as between:
            url = f"postgresql://postgres@127.0.0.1:{between.port}/postgres?sslmode=disable&schema={schema}"
            async with app_on(url) as app:
                await app.runs()  # connected, and the schema is there
                speech.lose(pattern, every=every)
                async with asyncio.timeout(30), app.worker(concurrency=5):
                    handles = await asyncio.gather(*(app.start("survey", number) for number in range(RUNS)))
                    results = [await handle.result() for handle in handles]

                speech.lose(None)
                assert results == [survey_result(number) for number in range(RUNS)]
                assert speech.lost, what
                store = (await app._client()).store
                runs = await all_runs(store)
                assert [run.state for run in runs] == [RunState.COMPLETED] * RUNS, "no start was made twice"
                assert await nothing_was_repeated_after_its_record(store, log) == 0

    asyncio.run(main())
