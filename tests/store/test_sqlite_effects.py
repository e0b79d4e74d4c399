"""Effects in a SQLite file: what they cost, how they are found, and files that were made before there were any."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perdure.core import limits
from perdure.core.changes import Change
from perdure.core.effects import EffectFilter, EffectState
from perdure.core.records import RunState
from perdure.store.sqlite import SQLiteStore, ledger, schema
from perdure.store.sqlite.transaction import STATEMENTS, spread_text
from perdure.testing.conformance import Bench, Harness, scenario
from perdure.testing.conformance.harness import blob, end, fail, found_out, hold, intend, settle, step
from tests.store.test_sqlite import OnFiles
from tests.store.test_sqlite_waiting import first_words, rows, size, statements

TABLE = re.compile(r"\b(effects|effect_events|ledger)\b(?: ([a-z])\b)?")
"""A table of the ledger, or its view, and the letter by which a statement calls it."""

BYTES_MAX = 1_000
"""Of file for each done effect with arguments and a result of 100 bytes, its step's record beside it."""


class TestEffectsInAFile(OnFiles, Harness):
    """What the suite, which knows no tables, cannot see."""

    @scenario
    async def test_an_intent_costs_a_look_and_two_inserts(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()

        with statements(bench.store) as told:
            await bench.commit(worker, intend(claimed, 900))

        assert [first_words(text) for text in told] == [
            "select exists",
            "with mine",
            "insert into effects",
            "insert into effect_events",
        ]

    @scenario
    async def test_an_outcome_is_written_with_its_record_and_its_event(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, intend(claimed, 900))

        with statements(bench.store) as told:
            await bench.commit(worker, settle(claimed, 900, key="e"))

        assert [first_words(text) for text in told] == [
            "select exists",
            "with mine",
            "select json_group_array(json_array(",
            "select json_group_array(json_array(v.effect,",
            "insert into checkpoints",
            "with moves",
            "insert into effect_events",
        ]

    @scenario
    async def test_many_effects_cost_as_many_statements_as_one(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(41)
        first, *others = await bench.claim(worker)
        counts = []

        for runs in ([first], others):
            with statements(bench.store) as told:
                await bench.commit(worker, *(intend(each, each.run + 10_000) for each in runs))
                await bench.commit(worker, *(settle(each, each.run + 10_000, key="e") for each in runs))
            counts.append(len(told))

        assert counts[0] == counts[1]

    @scenario
    async def test_a_batch_may_be_all_intents(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        count = limits.COMMIT_ROWS_MAX

        await bench.commit(worker, *(intend(claimed, 10_000 + n, f"e#{n}") for n in range(count)))
        await bench.commit(worker, *(settle(claimed, 10_000 + n, key=f"e#{n}") for n in range(count)))

        assert await rows(bench.store, "select state, count(*) from effects group by 1") == [("done", count)]

    @scenario
    async def test_a_cancelled_run_without_effects_costs_no_look_at_the_ledger(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        await bench.commit(worker, step(claimed, "a"), hold(claimed))

        with statements(bench.store) as told:
            await bench.cancel(claimed.run)

        assert await bench.state(claimed.run) is RunState.CANCELLED
        assert not [text for text in told if TABLE.search(text) and not text.startswith("with recursive")]

    @scenario
    async def test_values_that_cannot_be_stored_take_only_their_own_effects_with_them(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(8)
        runs = await bench.claim(worker)
        bad: dict[int, dict[str, Any]] = {1: {"key": "\ud800"}, 4: {"arguments": None}, 6: {"digest": 2**63}}

        outcome = await bench.store.commit(
            worker, [intend(each, 900 + n, **bad.get(n, {})) for n, each in enumerate(runs)]
        )

        assert set(outcome.refused) == {runs[n].run for n in bad} and not outcome.lost
        effects = await bench.store.effects(EffectFilter())
        assert [each.id - 900 for each in effects] == [n for n in range(8) if n not in bad]
        assert len({each.run for each in effects}) == 5

    @scenario
    async def test_a_change_that_does_not_fit_leaves_other_runs_beside_it_alone(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        one, two, three = await bench.claim(worker)
        taken = await bench.store.commit(worker, [intend(one, 901)])

        outcome = await bench.store.commit(
            worker,
            [
                step(two, "x"),
                settle(two, 901),
                settle(one, 901, key="e"),
                step(three, "a"),
                intend(three, 901, "b"),
                end(three),
            ],
        )

        assert not taken.refused and set(outcome.refused) == {two.run, three.run}
        assert list(await bench.steps(one.run)) == ["e"]
        assert await bench.steps(two.run) == {} and await bench.steps(three.run) == {}
        assert await bench.state(three.run) is RunState.RUNNING

    @scenario
    async def test_a_batch_sent_again_after_the_next_intent_changes_nothing(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        batch: list[Change] = [
            intend(claimed, 900),
            settle(claimed, 900, EffectState.ABSENT, note="it is not there"),
            intend(claimed, 900, attempt=2),
            settle(claimed, 900, attempt=2, key="e"),
            intend(claimed, 900, undo=True),
        ]
        await bench.commit(worker, *batch)
        before = await bench.store.get_effects([900]), await bench.store.effect_events(900)

        await bench.commit(worker, *batch)

        assert (await bench.store.get_effects([900]), await bench.store.effect_events(900)) == before
        assert [(each.rev, each.state, each.attempt) for each in before[1]] == [
            (1, EffectState.INTENDED, 1),
            (2, EffectState.ABSENT, 1),
            (3, EffectState.INTENDED, 2),
            (4, EffectState.DONE, 2),
            (5, EffectState.UNDOING, 1),
        ]

    @scenario
    async def test_long_ledgers_are_claimed_in_reads_of_a_bounded_size(self, bench: Bench) -> None:
        first = await bench.worker()
        await bench.start_many(3)
        runs = await bench.claim(first)
        keys = {each.run: [f"k{n}" for n in range(count)] for each, count in zip(runs, (5, 0, 2), strict=True)}
        ids = iter(range(10_000, 10_100))
        await bench.commit(first, *(intend(each, next(ids), key) for each in runs for key in keys[each.run]))
        await bench.store.retire(first)

        second = await bench.worker()
        with pytest.MonkeyPatch.context() as patch, statements(bench.store) as told:
            patch.setattr(ledger, "CLAIMED_A_READ", 3)
            claimed = await bench.claim(second)

        assert {each.run: [effect.key for effect in each.effects] for each in claimed} == keys
        assert len([text for text in told if "ledger l" in text]) == 3

    @scenario
    async def test_a_blob_of_an_effect_is_filed_once_with_what_first_needs_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin()
        large, result = blob(b"large"), blob(b"result")

        await bench.commit(worker, intend(claimed, 900, blobs=(large,)))
        await bench.commit(worker, settle(claimed, 900, key="e", blobs=(result,)))

        found = await bench.store.blobs(claimed.thread, [large.digest, result.digest])
        assert set(found.values()) == {b"large", b"result"}

    @scenario
    async def test_a_done_effect_is_small_and_leaves_the_index_of_open_ones(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(500)
        runs = await bench.claim(worker, limit=500)
        before = await size(bench.store)

        await bench.commit(worker, *(intend(each, 10_000 + n, arguments=b"x" * 100) for n, each in enumerate(runs)))
        await bench.commit(
            worker, *(settle(each, 10_000 + n, key="e", outcome=b"y" * 100) for n, each in enumerate(runs))
        )

        assert (await size(bench.store) - before) / 500 < BYTES_MAX
        assert await rows(bench.store, "select count(*) from effects indexed by effects_open where " + OPEN) == [(0,)]


OPEN = "state in ('intended', 'unknown', 'undoing', 'undo_failed')"


def test_a_file_from_before_there_were_effects_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as old:
        old.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:4])
        old.setattr(schema, "VERSION", 4)
        asyncio.run(SQLiteStore(path).migrate())
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript("""
            insert into threads (id, thread_id, agent, head, depth, last_ordinal, created_at)
              values (2, 't', 'agent', 1, 1, 1, 0), (4, 'u', 'agent', null, 0, 1, 0);
            insert into runs (id, thread, ordinal, agent, queue, state, ready, ready_at, priority, created_at, ended_at)
              values (1, 2, 1, 'agent', 'default', 'queued', 1, 0, 0, 0, null),
                (3, 4, 1, 'agent', 'default', 'failed', 0, 0, 0, 0, 1);
            insert into checkpoints values
              (1, 1, '', 1, 0, 0, 0, 0, 0, 0, x'31', null, 0, 0),
              (3, 1, '', 1, 0, 0, 0, 0, 0, 0, x'31', null, 0, 0),
              (3, 2, '', 2, 0, 0, 0, 0, 0, 1, x'32', null, 0, 0);
            update ids set next = 10;
        """)

    async def go_on() -> None:
        store = SQLiteStore(path)
        assert await store.migrate() == (4, schema.VERSION)
        await store.open()
        bench = Bench(Harness(), store)
        worker = await bench.worker()
        claimed = await bench.claim_one(worker)
        await bench.commit(worker, intend(claimed, 900))
        await bench.commit(worker, settle(claimed, 900, key="e"), fail(claimed))
        assert [each.undoing for each in await store.get_runs([1, 3])] == [False, False]
        unchanged, sent_on = await store.retry(3, (), undo=True), await store.retry(1, (), undo=True)
        assert unchanged is not None and unchanged.state is RunState.FAILED
        assert sent_on is not None and sent_on.state is RunState.QUEUED and sent_on.undoing
        assert await store.resolve(found_out(7, EffectState.DONE)) is None
        await bench.close()

    asyncio.run(go_on())


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with our tables and nothing in them."""
    path = tmp_path_factory.mktemp("plans") / "empty.db"
    asyncio.run(SQLiteStore(path).migrate())
    return path


def plan(path: Path, name: str) -> list[str]:
    """How SQLite goes about a statement."""
    statement = STATEMENTS[name]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if "(?" in statement.text:
            text = spread_text(name, 2)
            steps = connection.execute(f"explain query plan {text}", [None] * text.count("?")).fetchall()
        else:
            values = dict.fromkeys(statement.parameters, "[]")
            steps = connection.execute(f"explain query plan {statement.text}", values).fetchall()
    return [told for *_, told in steps]


@pytest.mark.parametrize("name", sorted(name for name in STATEMENTS if TABLE.search(STATEMENTS[name].text)))
def test_no_statement_walks_the_whole_ledger(name: str, empty: Path) -> None:
    called = {"e" if table == "ledger" else letter or table for table, letter in TABLE.findall(STATEMENTS[name].text)}

    assert [told for told in plan(empty, name) if told.split()[0] == "SCAN" and told.split()[1] in called] == []


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("list_open_effects", "SEARCH e USING INDEX effects_open (id>?)"),
        ("list_effects", "SEARCH e USING INTEGER PRIMARY KEY (rowid>?)"),
        ("list_run_effects", "SEARCH e USING INDEX effects_place (run=?)"),
        ("claimed_effects", "SEARCH e USING INDEX effects_place (run=? AND super_step=?)"),
        ("effects_at", "SEARCH e USING INDEX effects_place (run=? AND super_step=? AND key=?)"),
        ("family", "SEARCH e USING INDEX effects_place (run=?)"),
        ("effect_events", "SEARCH effect_events USING PRIMARY KEY (effect=?)"),
    ],
)
def test_effects_are_found_by_their_indexes(name: str, way: str, empty: Path) -> None:
    steps = plan(empty, name)

    assert way in steps
    if name in ("list_open_effects", "list_effects"):
        assert "USE TEMP B-TREE FOR ORDER BY" not in steps
