"""Waiting in a SQLite file: what it costs, what it keeps, and files that were made before there was any."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.records import RunState, WaitKind
from perdure.core.requests import NewMessage, NotSent, Sent
from perdure.store.sqlite import SQLiteStore, schema
from perdure.store.sqlite.connection import Database
from perdure.store.sqlite.transaction import STATEMENTS, spread_text
from perdure.testing.conformance import Bench, Harness, scenario
from perdure.testing.conformance.harness import again, bury, close, end, park, step, wait
from tests.store.test_sqlite import OnFiles

TABLE = re.compile(r"\b(waits|interrupts|messages)\b(?: ([a-z])\b)?")
"""A table of waits or mail, and the letter by which a statement calls it."""

BOOKKEEPING = ("begin", "commit", "savepoint", "release", "update clock", "select at")

BYTES_MAX = 800
"""Of file for each parked run with a question of 200 bytes; 1,000 is what may be."""


class TestWaitingInAFile(OnFiles, Harness):
    """What the suite, which knows no tables, cannot see."""

    @scenario
    async def test_a_batch_of_steps_costs_a_guard_and_an_insert(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        runs = await bench.claim(worker)

        with statements(bench.store) as told:
            await bench.commit(worker, *(step(each, "a") for each in runs))

        assert [first_words(text) for text in told] == ["select exists", "insert into checkpoints"]

    @scenario
    async def test_ends_that_nobody_waits_for_ask_once_whether_somebody_does(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        runs = await bench.claim(worker)

        with statements(bench.store) as told:
            await bench.commit(worker, *(end(each) for each in runs))

        assert [first_words(text) for text in told] == [
            "select exists",
            "insert into checkpoints",
            "update runs",
            "update threads",
            "update runs",
            "select exists",
        ]

    @scenario
    async def test_parking_many_runs_costs_as_many_statements_as_parking_one(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(41)
        first, *others = await bench.claim(worker)
        counts = []

        for runs in ([first], others):
            opened = [wait(each, "nap", WaitKind.TIMER, delay_us=1_000_000) for each in runs]
            with statements(bench.store) as told:
                await bench.commit(worker, *opened, *(park(each) for each in runs))
            counts.append(len(told))

        assert counts[0] == counts[1]

    @scenario
    async def test_a_received_message_is_forgotten_once_its_sender_cannot_ask_any_more(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        message = await bench.message()
        (sent,) = await bench.store.send([message])
        assert isinstance(sent, Sent)
        await bench.commit(worker, close(claimed, "m", take=sent.seq))
        assert await rows(bench.store, "select id, payload from messages") == [(message.id, None)]

        await bench.advance_s(limits.MESSAGE_MEMORY_US / 1_000_000 + 1)
        assert await bench.store.send([message]) == [sent]
        await bench.send()

        assert message.id not in [id for (id,) in await rows(bench.store, "select id from messages")]

    @scenario
    async def test_values_that_cannot_be_stored_take_only_their_own_waits_with_them(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(8)
        runs = await bench.claim(worker)
        bad: dict[int, Any] = {
            1: [wait(runs[1], "\ud800", WaitKind.TIMER, delay_us=1)],
            3: [wait(runs[3], "q", WaitKind.ANSWER, interrupt=await bench.question("\ud800"))],
            5: [wait(runs[5], "m", WaitKind.MESSAGE, labels=("\ud800",))],
        }
        good = {n: [wait(each, "nap", WaitKind.TIMER, delay_us=10**9), park(each)] for n, each in enumerate(runs)}

        outcome = await bench.store.commit(worker, [each for n in range(8) for each in bad.get(n, good[n])])

        assert set(outcome.refused) == {runs[n].run for n in bad} and not outcome.lost
        for n, each in enumerate(runs):
            assert await bench.state(each.run) is (RunState.RUNNING if n in bad else RunState.WAITING)

    @scenario
    async def test_a_bounced_change_beside_a_bad_value_is_told_as_bounced(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        one, two = await bench.claim(worker)

        outcome = await bench.store.commit(
            worker, [close(one, "m", take=7), step(one, "a"), bury(one, 9), step(two, "\ud800")]
        )

        assert list(outcome.refused) == [two.run] and list(outcome.bounced) == [(one.run, 1, "m")]
        assert list(await bench.steps(one.run)) == ["a"]

    @scenario
    async def test_one_send_beyond_a_mailbox_that_others_fill_bounces(self, bench: Bench) -> None:
        await bench.start("t")
        with self.mailbox_max(2):
            messages = [await bench.message("t") for _ in range(3)]
            outcomes = await bench.store.send(messages)

        assert [type(each) for each in outcomes] == [Sent, Sent, NotSent]

    @scenario
    async def test_a_parked_run_with_a_question_is_small(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.commit(worker)
        before = await size(bench.store)
        await bench.start_many(500)
        runs = await bench.claim(worker, limit=500)
        questions = [await bench.question(payload=b"x" * 200, digest="0" * 32) for _ in runs]
        opened = [
            wait(each, "approve", WaitKind.ANSWER, interrupt=question, delay_us=10**9)
            for each, question in zip(runs, questions, strict=True)
        ]

        await bench.commit(worker, *opened, *(park(each) for each in runs))

        assert (await size(bench.store) - before) / 500 < BYTES_MAX


def test_a_file_from_before_there_was_waiting_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as old:
        old.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        old.setattr(schema, "VERSION", 3)
        asyncio.run(SQLiteStore(path).migrate())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("""
            insert into threads (id, thread_id, agent, head, depth, last_ordinal, created_at)
              values (2, 't', 'agent', 1, 1, 1, 0);
            insert into runs (id, thread, ordinal, agent, queue, state, ready, ready_at, priority, created_at)
              values (1, 2, 1, 'agent', 'default', 'queued', 1, 0, 0, 0);
            insert into checkpoints values (1, 1, '', 1, 0, 0, 0, 0, 0, 0, x'31', null, 0, 0);
            update ids set next = 10;
        """)

    async def go_on() -> None:
        store = SQLiteStore(path)
        assert await store.migrate() == (3, schema.VERSION)
        await store.open()
        bench = Bench(Harness(), store)
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)
        await bench.commit(worker, again(claimed, 2, state=b"s"))
        assert await store.send([NewMessage(9, "t", "", "note", b"m")]) == [Sent(2, 1)]
        taken = close(claimed, "m", super_step=2, take=1)
        await bench.commit(worker, taken, end(claimed, super_step=3))
        assert await bench.state(1) is RunState.COMPLETED
        await bench.close()

    asyncio.run(go_on())


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_walks_all_waits_or_all_mail(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "waiting.db"
    if not path.exists():
        asyncio.run(SQLiteStore(path).migrate())
    statement = STATEMENTS[name]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if "(?" in statement.text:
            text = spread_text(name, 2)
            plan = connection.execute(f"explain query plan {text}", [None] * text.count("?")).fetchall()
        else:
            values = dict.fromkeys(statement.parameters, "[]")
            plan = connection.execute(f"explain query plan {statement.text}", values).fetchall()

    called = {letter or table for table, letter in TABLE.findall(statement.text)}
    assert [told for *_, told in plan if told.removeprefix("SCAN ") in called] == []


# -- looking into the file -----------------------------------------------------------------------------------


@contextlib.contextmanager
def statements(store: Any) -> Iterator[list[str]]:
    """What is told to the writer's connection meanwhile, without the bookkeeping of every transaction."""
    told: list[str] = []

    def note(text: str) -> None:
        if not text.startswith(BOOKKEEPING):
            told.append(text)

    connection = store._opened.writer._work.connection
    connection.set_trace_callback(note)
    try:
        yield told
    finally:
        connection.set_trace_callback(None)


def first_words(text: str) -> str:
    """`insert into runs`, `update runs`, `select exists`: enough to tell one from the others."""
    words = text.split()
    return " ".join(words[: 3 if words[0] == "insert" else 2])


async def rows(store: Any, query: str) -> list[Any]:
    return await store._read(lambda reader: reader.connection.execute(query).fetchall())  # type: ignore[no-any-return]


async def size(store: Any) -> int:
    """Of the file, in bytes, with what is still in its log."""
    database: Database = store._database
    with contextlib.closing(database.connect(cache_kib=100)) as connection:
        (pages,) = connection.execute("pragma page_count").fetchone()
        (page_size,) = connection.execute("pragma page_size").fetchone()
    return int(pages) * int(page_size)
