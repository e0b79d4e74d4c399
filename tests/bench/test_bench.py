"""`perdure bench`: what it measures, where, and how it judges. Only the smallest sizes are run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from perdure.bench import growth, latency, replay, throughput
from perdure.bench.command import bench
from perdure.bench.goals import GOALS, MEASURES, Bound, Reading, meets
from perdure.bench.ground import Ground, ground_at
from perdure.bench.page import show
from perdure.bench.plan import ON_GROUND, Item, plan
from perdure.bench.report import document, rows
from perdure.client.serving import run_loop
from perdure.errors import UsageError
from perdure.store.postgres.address import parse
from tests.support import postgres

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


def on_ground(kind: str, measure: Any, **sizes: int) -> list[Reading]:
    """Take one measure in a small size."""

    async def main() -> list[Reading]:
        async with ground_at(postgres.shared().url() if kind == "postgres" else None) as ground:
            found: list[Reading] = await measure(ground, **sizes)
            return found

    return run_loop(main())


def test_the_start_up_is_measured_and_printed_as_json() -> None:
    done = CliRunner().invoke(bench, ["--only", "P10", "--json", "--repeat", "1"], catch_exceptions=False)

    report = json.loads(done.stdout)
    assert [row["measure"] for row in report["rows"]] == ["P10 import", "P10 help"]
    assert all(row["value"] > row["raw"] > 0 and set(row["met"]) == {"now", "final"} for row in report["rows"])
    assert report["machine"]["cores"] >= 1 and report["repeat"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_many_runs_are_measured(kind: str) -> None:
    (reading,) = on_ground(kind, throughput.steps_per_s, runs=20, steps=3)

    assert reading.row == ("P1" if kind == "postgres" else "P2")
    assert reading.value > 0 and reading.raw > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_other_measure_works_in_a_small_size(kind: str) -> None:
    readings = [
        *on_ground(kind, latency.step_ms, steps=5),
        *on_ground(kind, throughput.runs_per_s, runs=30, concurrency=10),
        *on_ground(kind, replay.replay_ms, steps=5, many=10),
        *on_ground(kind, growth.bytes_and_load, super_steps=5),
    ]

    measured = ["P3 async", "P3 sync", "P5", "P7 replay", "P7 flat", "P9 bytes", "P9 load"]
    assert [reading.row for reading in readings] == measured
    assert all(reading.value > 0 and reading.raw > 0 for reading in readings)


@pytest.mark.postgres
def test_a_ground_on_postgres_leaves_nothing_behind() -> None:
    async def main() -> list[str]:
        url = postgres.shared().url()
        async with ground_at(url) as ground:
            await ground.rows_per_s()
        connection = await asyncpg.connect(parse(url).dsn)
        found = await connection.fetch("select nspname from pg_namespace")
        await connection.close()
        return [row["nspname"] for row in found]

    assert [name for name in run_loop(main()) if name.startswith("perdure_bench_")] == []


def test_a_ground_beside_a_sqlite_file_leaves_nothing_behind(tmp_path: Path) -> None:
    async def main() -> bool:
        async with ground_at(f"sqlite:///{tmp_path / 'mine.db'}") as ground:
            await ground.commit_ms()
            return any(tmp_path.iterdir())

    assert run_loop(main())
    assert list(tmp_path.iterdir()) == []


# -- what is measured where ----------------------------------------------------------------------------------


def test_each_measure_is_taken_where_it_belongs() -> None:
    url = "postgresql://user@host/db"

    alone = plan((), store=None, postgres=None)
    beside = plan((), store=None, postgres=url)
    there = plan((), store=url, postgres=None)

    assert [item.measure for item in alone] == ["P2", "P3", "P5", "P6", "P7", "P9", "P10"]
    assert {item.url for item in alone} == {None}
    assert beside == [Item("P1", url), *alone]
    assert [item.measure for item in there if item.url == url] == ["P1", "P3", "P5", "P6", "P7", "P9"]


def test_what_cannot_be_measured_is_said_with_a_remedy() -> None:
    with pytest.raises(UsageError, match="--postgres postgresql://"):
        plan(("P1",), store=None, postgres=None)
    with pytest.raises(UsageError, match="sqlite and postgresql URLs"):
        plan((), store="memory://", postgres=None)
    with pytest.raises(UsageError, match="begins with postgresql"):
        plan((), store=None, postgres="sqlite:///x.db")
    assert CliRunner().invoke(bench, ["--only", "P4"]).exit_code == 2


def test_every_measure_has_its_rows_and_its_ground() -> None:
    assert {row.split()[0] for row in GOALS} == set(MEASURES) == {*ON_GROUND, "P10"}


# -- judging -------------------------------------------------------------------------------------------------


def test_a_goal_asks_for_a_value_a_ratio_or_both() -> None:
    fast, quick = GOALS["P1"], GOALS["P3 sync"]

    assert meets(fast, fast.final, 25_000, 0.25)
    assert not meets(fast, fast.final, 25_000, 0.1)
    assert not meets(fast, fast.final, 15_000, 0.25)
    assert meets(quick, quick.now, 5.0, 2.9)
    assert not meets(quick, quick.now, 0.1, 3.1)
    assert meets(quick, Bound(), 1e9, 1e9)


def test_a_row_is_made_of_medians() -> None:
    item = Item("P3", None)
    taken = [(item, [Reading("P3 sync", value, raw, f"took {value:g}")]) for value, raw in ((2, 1), (9, 3), (4, 1))]

    (row,) = rows(taken)

    assert (row.value, row.raw, row.ratio, row.note, row.store) == (4, 1, 3, "took 4", "SQLite")
    (written,) = document([row], repeat=3)["rows"]
    assert written["met"] == {"now": True, "final": False} and written["values"] == [2, 9, 4]


def test_the_page_fits_into_100_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    readings = [Reading(name, 45_678.9, 456_789.0, "p99 0.123") for name in GOALS]

    show(rows([(Item("P1", "postgresql://u@h/d"), readings)]), repeat=3)

    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    for name, goal in GOALS.items():
        (line,) = (line for line in printed.splitlines() if line.startswith(f"{name} ") and "p99" not in line)
        assert goal.what in line and "0.100" in line
        assert line.count("✓") + line.count("✗") == 2


def test_a_ground_is_what_the_measures_need() -> None:
    async def main() -> list[float]:
        async with ground_at(None) as ground:
            asked: Ground = ground
            return [await asked.rows_per_s(), await asked.commit_ms(), await asked.read_ms(10), await asked.bytes()]

    *limits, size = run_loop(main())

    assert min(limits) > 0 and size == 0
