"""The stage and agents with transactions: SQL and record are one, whenever a worker dies."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import perdure
from perdure import App, Retry, RunFailed, Transaction
from perdure.testing import answer_step, crash_after, crash_before, crash_in, fail_step, rehearse, slow_step

app = App("banking", store="memory://staged-banking")


@perdure.transaction(retry=Retry(attempts=2, delay_s=60, retry_on=ConnectionError))
async def move(tx: Transaction, source: str, target: str, cents: int) -> int:
    await tx.execute("update accounts set cents = cents - ? where name = ?", cents, source)
    await asyncio.sleep(1)  # in virtual time, which costs nothing
    await tx.execute("update accounts set cents = cents + $2 where name = $1 and name = $1", target, cents)
    left: int = await tx.fetch_value("select cents from accounts where name = ?", source)
    if left < 0:
        raise ValueError(f"{source} has not enough")
    perdure.meter("transfers", 1)
    return left


@perdure.transaction
async def look(tx: Transaction) -> list[dict[str, Any]]:
    assert tx.dialect == "sqlite"
    await tx.execute_many("insert into seen (what) values ($1)", [("a $1",), ("b",)])
    assert await tx.fetch_row("select * from seen where what = 'a $1'") == {"what": "a $1"}
    assert await tx.fetch_row("select * from seen where what = 'c'") is None
    with pytest.raises(sqlite3.ProgrammingError, match=r"has \$2, and 1 parameters"):
        await tx.fetch("select * from seen where what = $2", "b")
    return await tx.fetch("select name, cents from accounts order by name")


@perdure.transaction(retry=1)
async def ending(tx: Transaction) -> None:
    await tx.execute("commit")


@app.agent
async def transfer(cents: int) -> int:
    return await move("ann", "bob", cents)


@app.agent
async def both() -> list[int]:
    return list(await asyncio.gather(move("ann", "bob", 10), move("ann", "bob", 20)))


@app.agent
async def looking() -> list[dict[str, Any]]:
    return await look()


@app.agent
async def ends_itself() -> None:
    await ending()


@contextmanager
def bank(*faults: Any) -> Iterator[Any]:
    with rehearse(app, *faults) as stage:
        stage.database.executescript(
            "create table accounts (name text, cents int); create table seen (what text);"
            "insert into accounts values ('ann', 100), ('bob', 0);"
        )
        yield stage


def cents(stage: Any) -> dict[str, int]:
    return dict(stage.database.execute("select name, cents from accounts").fetchall())


@pytest.mark.parametrize(
    ("crash", "bodies"), [(crash_before, 1), (crash_in, 2), (crash_after, 1)], ids=["before", "in", "after"]
)
def test_a_transaction_happens_once_whenever_its_worker_dies(crash: Callable[..., Any], bodies: int) -> None:
    with bank(crash("move")) as stage:
        assert stage.run(transfer, 30) == 70
        assert (cents(stage), stage.crashes) == ({"ann": 70, "bob": 30}, 1)
        assert [(row.name, int(row.quantity)) for row in stage.usage()] == [("transfers", 1)]
        assert stage.count("move") >= bodies


def test_a_worker_that_dies_in_the_middle_leaves_nothing() -> None:
    with bank() as stage:
        handle = stage.start(transfer, 30)
        stage.advance("0.5s")
        assert stage.count("move") == 1
        assert cents(stage) == {"ann": 100, "bob": 0}
        stage.crash()
        assert cents(stage) == {"ann": 100, "bob": 0}
        assert stage.play(handle.result) == 70
        assert (stage.count("move"), cents(stage)) == (2, {"ann": 70, "bob": 30})


def test_a_transaction_that_fails_leaves_nothing() -> None:
    with bank() as stage:
        with pytest.raises(RunFailed, match="ann has not enough"):
            stage.run(transfer, 300)
        assert cents(stage) == {"ann": 100, "bob": 0}


def test_a_transaction_is_tried_again_and_takes_too_long_as_its_step_says() -> None:
    with bank(fail_step("move", ConnectionError), slow_step("move", "8s", nth=2)) as stage:
        before = stage.now
        assert stage.run(transfer, 30) == 70
        assert 67 < (stage.now - before).total_seconds() < 200
    with bank(slow_step("move", "11s", times=2)) as stage:
        with pytest.raises(RunFailed, match="10"):
            stage.run(transfer, 30)
        assert cents(stage) == {"ann": 100, "bob": 0}


def test_transactions_go_one_after_another() -> None:
    with bank() as stage:
        before = stage.now
        assert sorted(stage.run(both)) in ([70, 80], [70, 90])
        assert cents(stage) == {"ann": 70, "bob": 30}
        assert (stage.now - before).total_seconds() >= 2


def test_those_who_wait_for_a_worker_that_dies_go_on() -> None:
    with bank(crash_in("move")) as stage:
        handles = [stage.start(transfer, 1) for _ in range(5)]
        for handle in handles:
            stage.play(handle.result)
        assert cents(stage) == {"ann": 95, "bob": 5}


def test_a_transaction_reads_and_writes_many_rows() -> None:
    with bank() as stage:
        assert stage.run(looking) == [{"name": "ann", "cents": 100}, {"name": "bob", "cents": 0}]


def test_a_transaction_may_not_end_itself() -> None:
    with bank() as stage:
        with pytest.raises(RunFailed, match="not authorized"):
            stage.run(ends_itself)


def test_a_table_that_is_not_there_is_the_databases_error() -> None:
    with rehearse(app) as stage:
        with pytest.raises(RunFailed, match="no such table: accounts"):
            stage.run(transfer, 30)


def test_a_transaction_is_answered_in_the_place_of_its_sql() -> None:
    with rehearse(app, answer_step("move", lambda tx, source, target, cents: 100 - cents)) as stage:
        assert stage.run(transfer, 30) == 70


def test_a_test_that_writes_while_a_transaction_is_under_way_is_told_so() -> None:
    with bank() as stage:
        stage.start(transfer, 30)
        stage.advance("0.5s")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            stage.database.execute("insert into seen values ('x')")


def test_two_stages_have_databases_of_their_own() -> None:
    with bank() as stage:
        assert stage.run(transfer, 30) == 70
    with bank() as stage:
        assert cents(stage) == {"ann": 100, "bob": 0}
