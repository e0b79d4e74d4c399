"""What the hot path costs, counted: transactions, round trips and bytes, whatever the machine's speed."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

import perdure
from perdure import App
from perdure.bench.ground import ground_at
from perdure.bench.growth import bytes_and_load
from perdure.bench.throughput import app_at
from perdure.client.serving import run_loop
from perdure.core.leases import RENEWALS_PER_LEASE
from perdure.core.requests import ClaimRequest, NewWorker
from perdure.runtime.keeper import LOOK_S, SWEEP_S, Keeper
from perdure.runtime.settings import worker_settings
from perdure.runtime.trust import Trust
from perdure.runtime.watchdog import Watchdog
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.postgres import PostgresStore, lines
from perdure.store.protocol import Store
from perdure.store.sqlite.connection import Database
from perdure.store.sqlite.line import Line
from tests.support import postgres

RUNS = 1_000
STEPS = 20
SHARE_MAX = 0.05
"""Transactions, and round trips, for each step."""

SUPER_STEPS = 1_000
BYTES_MAX = 3_000
"""Of database for each super-step that appends 1 KB to the state."""

POLLS = 5
KEPT_S = 60.0
"""On a clock that the test moves."""


async def work(url: str, *, runs: int = RUNS, steps: int = STEPS) -> None:
    """Start so many runs at once, execute them in this process, read every result."""
    app, agent = app_at(url)
    async with app, app.worker(concurrency=runs):
        handles = await asyncio.gather(*(app.start(agent, steps) for _ in range(runs)))
        assert await asyncio.gather(*(handle.result() for handle in handles)) == [steps] * runs


# -- SQLite --------------------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Statements by their first word, and requests to the store's operating-system threads."""
    counts: Counter[str] = Counter()
    connect, submit = Database.connect, Line.submit

    def count_statement(text: str) -> None:
        counts[text.split(None, 1)[0].lower()] += 1

    def traced(self: Database, **options: Any) -> sqlite3.Connection:
        connection = connect(self, **options)
        connection.set_trace_callback(count_statement)
        return connection

    def counted(self: Line, operation: Any) -> Any:
        counts["round trip"] += 1
        return submit(self, operation)

    monkeypatch.setattr(Database, "connect", traced)
    monkeypatch.setattr(Line, "submit", counted)
    return counts


def test_a_step_on_sqlite_costs_a_small_share_of_a_transaction(sqlite_counts: Counter[str], tmp_path: Path) -> None:
    run_loop(work(f"sqlite:///{tmp_path / 'counts.db'}"))

    assert 0 < sqlite_counts["commit"] / (RUNS * STEPS) < SHARE_MAX
    assert 0 < sqlite_counts["round trip"] / (RUNS * STEPS) < SHARE_MAX


# -- Postgres ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def database(name: str) -> AsyncIterator[str]:
    """A database of its own on the tests' server, whose statistics nobody else adds to."""
    url = postgres.shared().url()
    admin = await asyncpg.connect(url.rpartition("&")[0])
    await admin.execute(f"create database {name}")
    try:
        yield url.replace("/postgres?", f"/{name}?")
    finally:
        await admin.execute(f"drop database {name}")
        await admin.close()


async def transactions(name: str) -> int:
    """What the server has committed in a database; connections that have ended have told it everything."""
    admin = await asyncpg.connect(postgres.shared().url().rpartition("&")[0])
    try:
        while await admin.fetchval("select count(*) from pg_stat_activity where datname = $1", name):
            await asyncio.sleep(0)
        committed: int = await admin.fetchval("select xact_commit from pg_stat_database where datname = $1", name)
        return committed
    finally:
        await admin.close()


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every query that any connection of a store makes, by its text."""
    counts: Counter[str] = Counter()
    connect = lines.connect

    async def logged(*args: Any, **options: Any) -> asyncpg.Connection[Any]:
        connection = await connect(*args, **options)
        connection.add_query_logger(lambda record: counts.update([record.query]))
        return connection

    monkeypatch.setattr(lines, "connect", logged)
    return counts


@pytest.mark.postgres
def test_a_step_on_postgres_costs_a_small_share_of_a_transaction(queries: Counter[str]) -> None:
    async def main() -> int:
        async with database("counts") as url:
            async with App("nobody", store=url):  # the schema is made before anything is counted
                pass
            before = await transactions("counts")
            queries.clear()
            await work(url)
            return await transactions("counts") - before

    committed = run_loop(main())

    assert 0 < committed / (RUNS * STEPS) < SHARE_MAX
    assert 0 < queries.total() / (RUNS * STEPS) < SHARE_MAX


@pytest.mark.postgres
def test_a_transaction_on_postgres_costs_four_round_trips_besides_its_own(queries: Counter[str]) -> None:
    app = App("counted", store=postgres.shared().fresh_url())

    @perdure.transaction
    async def look(tx: perdure.Transaction, number: int) -> int:
        return cast(int, await tx.fetch_value("select $1::integer", number))

    @app.agent
    async def agent(count: int) -> None:
        for number in range(count):
            await look(number)

    async def main(count: int) -> int:
        async with app, app.worker():
            queries.clear()
            await (await app.start(agent, count)).result()
            return queries.total()

    few, many = run_loop(main(10)), run_loop(main(110))

    assert 5 <= (many - few) / 100 < 5.5  # beside them others look now and then


# -- idle ----------------------------------------------------------------------------------------------------


class Counted:
    """A store that counts its verbs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.verbs: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def verb(*args: Any, **options: Any) -> Any:
            self.verbs[name] += 1
            return found(*args, **options)

        return verb


class SlowClock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall_us(self) -> int:
        return int(self.now * 1_000_000)


def test_an_idle_claimer_asks_twice_a_poll() -> None:
    """For work, and for the time of the next waiting run."""

    async def main() -> Counter[str]:
        app, _ = app_at("memory://idle-claimer")
        async with app:
            counted = Counted((await app._client()).store)
            settings = worker_settings(poll_s=0.001)
            async with Worker(cast(Store, counted), app.agents, settings=settings):
                while not counted.verbs["set_idle"]:
                    await asyncio.sleep(0)
                counted.verbs.clear()
                while counted.verbs["claim"] < POLLS:
                    await asyncio.sleep(0)
                return +counted.verbs

    counted = asyncio.run(main())
    assert counted["claim"] == POLLS and abs(counted["next_due"] - POLLS) <= 1
    assert set(counted) == {"claim", "next_due"}


def test_an_idle_keeper_asks_a_few_times_a_second() -> None:
    async def main() -> tuple[Counter[str], float]:
        store, clock = MemoryStore(), SlowClock()
        await store.open()
        counted, settings = Counted(store), worker_settings()
        await store.register(NewWorker(1, "idle", "here", 1, "default", int(settings.lease_s * 1e6)))
        trust = Trust(clock, clock.now + settings.lease_s)
        watchdog = Watchdog(asyncio.get_running_loop(), clock, stall_limit_s=settings.stall_limit_s)
        keeper = Keeper(
            cast(Store, counted), 1, settings=settings, trust=trust, watchdog=watchdog, clock=clock,
            on_lost=lambda: pytest.fail("nobody took over"),
        )  # fmt: skip
        began = clock.now
        while clock.now - began < KEPT_S:
            clock.now += await keeper.tick()
            await asyncio.sleep(0)
        return counted.verbs, clock.now - began

    verbs, kept_s = asyncio.run(main())

    assert verbs["renew"] <= kept_s * RENEWALS_PER_LEASE / worker_settings().lease_s
    assert verbs["take_over"] <= kept_s / SWEEP_S
    assert verbs["silent_workers"] <= kept_s / LOOK_S
    assert set(verbs) == {"renew", "take_over", "silent_workers"}


@pytest.mark.postgres
def test_what_an_idle_worker_asks_is_one_query_each(queries: Counter[str]) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.shared().fresh_url())
        await store.open()
        worker = await store.reserve_ids(1)
        await store.register(NewWorker(worker, "idle", "here", 1, "default", 60_000_000))
        assert await store.attend(worker)
        for _ in range(2):  # the first time, the driver learns types and prepares statements
            await asyncio.sleep(0)  # the log is written in the loop's next round
            queries.clear()
            assert await store.claim(ClaimRequest(worker, ("agent",), ("default",), "default", 10)) == []
            assert await store.silent_workers() == []
            assert await store.take_over([], recoveries_max=5) == []
            assert await store.renew(worker, 60_000_000)
        await store.close()

    asyncio.run(main())

    assert queries.total() == 4


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_growing_state_costs_what_was_added_to_it(kind: str) -> None:
    async def main() -> float:
        async with ground_at(postgres.shared().url() if kind == "postgres" else None) as ground:
            size, _ = await bytes_and_load(ground, super_steps=SUPER_STEPS)
            return size.value

    assert run_loop(main()) / SUPER_STEPS <= BYTES_MAX
