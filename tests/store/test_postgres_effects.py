"""The ledger of effects on Postgres: its verbs against others, two transactions at a time; which statements write what;
and a schema from before there was one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import asyncpg
import pytest

from perdure.core.changes import Change, CommitOutcome
from perdure.core.effects import EffectState
from perdure.core.records import RunState, WaitKind
from perdure.core.requests import Bounce
from perdure.store.postgres import PostgresStore, schema
from perdure.store.postgres.address import parse
from perdure.testing.conformance.harness import (
    Bench,
    close,
    end,
    fail,
    found_out,
    hold,
    intend,
    park,
    requeue,
    settle,
    step,
    undo,
    wait,
)
from tests.support import postgres
from tests.support.stage import Fresh, Stage, played

pytestmark = pytest.mark.postgres


# -- two at a time -------------------------------------------------------------------------------------------


def test_a_retry_waits_for_a_resolution_and_goes_on_from_it() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.intended(worker, claimed)
        await on.bench.commit(worker, settle(claimed, effect, EffectState.UNKNOWN), fail(claimed))
        absent = found_out(effect, EffectState.ABSENT)

        resolved, row = await on.held_against(
            lambda store: store.resolve(absent), on.bench.store.retry(claimed.run, [])
        )

        assert resolved is not None and resolved.state is EffectState.ABSENT
        assert row is not None and row.state is RunState.QUEUED
        again = await on.bench.claim_one(worker)
        assert [each.state for each in again.effects] == [EffectState.ABSENT]

    played(body)


def test_a_resolution_waits_for_a_retry_and_comes_too_late() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.intended(worker, claimed)
        await on.bench.commit(worker, settle(claimed, effect, EffectState.UNKNOWN), fail(claimed))
        absent = found_out(effect, EffectState.ABSENT)

        _, resolved = await on.held_against(lambda store: store.retry(claimed.run, []), on.bench.store.resolve(absent))

        assert resolved is not None and resolved.state is EffectState.UNKNOWN
        assert await on.bench.events(effect) == [(EffectState.INTENDED, 1), (EffectState.UNKNOWN, 1)]

    played(body)


def test_a_take_over_passes_by_an_intent_that_is_being_written_and_leaves_it_unknown_afterwards() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.new_id()
        holding = on.hold(lambda store: store.commit(worker, [intend(claimed, effect)]))
        await holding.written()

        assert await on.bench.store.take_over([worker], recoveries_max=5) == []
        assert await holding.commit() == CommitOutcome()

        assert await on.bench.die(worker) == ((claimed.run,), ())
        again = await on.bench.claim_one(await on.bench.worker())
        assert [each.state for each in again.effects] == [EffectState.UNKNOWN]

    played(body)


def test_an_intent_waits_for_a_take_over_and_is_not_written() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.new_id()

        _, outcome = await on.held_against(
            lambda store: store.take_over([worker], recoveries_max=5),
            on.bench.store.commit(worker, [intend(claimed, effect)]),
        )

        assert outcome == CommitOutcome(alive=False)
        assert await on.bench.store.get_effects([effect]) == []

    played(body)


def test_an_intent_waits_for_a_cancellation_and_is_not_written() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.new_id()

        _, outcome = await on.held_against(
            lambda store: store.cancel(claimed.run, "enough", b""),
            on.bench.store.commit(worker, [step(claimed, "s"), intend(claimed, effect)]),
        )

        assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))
        assert await on.bench.store.get_effects([effect]) == []
        assert set(await on.bench.steps(claimed.run)) == {"s"}

    played(body)


def test_a_cancellation_waits_for_an_intent_which_stands() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.new_id()

        outcome, row = await on.held_against(
            lambda store: store.commit(worker, [intend(claimed, effect)]),
            on.bench.store.cancel(claimed.run, "enough", b""),
        )

        assert outcome == CommitOutcome()
        assert row is not None and row.cancel == "enough"
        assert (await on.bench.effect(effect)).state is EffectState.INTENDED

    played(body)


def test_a_cancellation_waits_for_a_resolution_and_lets_what_was_done_be_undone() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        effect = await on.bench.intended(worker, claimed)
        await on.bench.commit(worker, settle(claimed, effect, EffectState.UNKNOWN), hold(claimed))
        done = found_out(effect, EffectState.DONE, b"receipt")

        _, row = await on.held_against(
            lambda store: store.resolve(done), on.bench.store.cancel(claimed.run, "enough", b"")
        )

        assert row is not None and (row.state, row.undoing) == (RunState.QUEUED, True)

    played(body)


def test_a_resolution_waits_for_a_cancellation_that_sends_the_run_on() -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        await on.bench.done(worker, claimed, "done")
        effect = await on.bench.intended(worker, claimed)
        await on.bench.commit(worker, settle(claimed, effect, EffectState.UNKNOWN), hold(claimed))

        _, resolved = await on.held_against(
            lambda store: store.cancel(claimed.run, "enough", b""),
            on.bench.store.resolve(found_out(effect, EffectState.DONE)),
        )

        assert resolved is not None and resolved.state is EffectState.UNKNOWN
        assert await on.bench.state(claimed.run) is RunState.QUEUED

    played(body)


# -- batches -------------------------------------------------------------------------------------------------


def test_effects_and_waits_of_one_batch_are_written_together_and_what_bounces_alone_is_not() -> None:
    async def body(on: Stage) -> None:
        bench = on.bench
        worker = await bench.worker()
        await bench.start_many(3)
        one, two, three = await bench.claim(worker)
        first, second, third = [await bench.new_id() for _ in range(3)]
        await bench.commit(worker, intend(one, first), wait(three, "w", WaitKind.MESSAGE))
        bounced = close(three, "w", take=99)
        mixed: list[Change] = [
            wait(two, "w"),
            settle(one, first, EffectState.FAILED),
            bounced,
            intend(one, first, attempt=2),
            intend(two, second),
            park(two),
            intend(three, third, "unfit"),
            undo(three),
            settle(one, first, attempt=2, key="e"),
            end(one),
        ]

        outcome = await bench.store.commit(worker, mixed)

        assert outcome == CommitOutcome(bounced={(three.run, 1, "w"): Bounce.GONE})
        assert [await bench.state(each.run) for each in (one, two)] == [RunState.COMPLETED, RunState.WAITING]
        states = [each.state for each in await bench.store.get_effects([first, second, third])]
        assert states == [EffectState.DONE, EffectState.UNKNOWN, EffectState.INTENDED]
        assert (await bench.run(three.run)).undoing

    played(body)


def test_what_does_not_fit_takes_only_its_own_run_out_of_a_batch_with_waits() -> None:
    async def body(on: Stage) -> None:
        bench = on.bench
        worker = await bench.worker()
        await bench.start_many(2)
        one, two = await bench.claim(worker)
        effect = await bench.done(worker, one)
        batch: list[Change] = [wait(two, "w"), park(two), intend(one, effect, attempt=2), wait(one, "w")]

        outcome = await bench.store.commit(worker, batch)

        assert outcome == CommitOutcome(
            refused={one.run: "effect 'e' is 'done' at attempt 1; it cannot become 'intended' now"}
        )
        assert await bench.waits(one.run) == {}
        assert await bench.state(two.run) is RunState.WAITING

    played(body)


@pytest.mark.parametrize("parks", [False, True])
def test_a_run_with_changes_of_an_older_claim_is_lost_and_not_refused(parks: bool) -> None:
    async def body(on: Stage) -> None:
        worker, claimed = await on.bench.begin()
        await on.bench.commit(worker, requeue(claimed))
        again = await on.bench.claim_one(worker)
        unfit = intend(again, await on.bench.new_id(), undo=True)
        batch: list[Change] = [requeue(claimed), unfit, *([park(again)] if parks else [])]

        outcome = await on.bench.store.commit(worker, batch)

        assert outcome == CommitOutcome(lost=frozenset({again.run}))

    played(body)


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        (["append_one"], lambda c: [step(c, "s")]),
        (["append"], lambda c: [step(c, "s"), step(c, "t")]),
        (["commit"], lambda c: [step(c, "s"), end(c)]),
        (["commit_waits"], lambda c: [step(c, "s"), end(c, waited=True)]),
        (["commit_effects"], lambda c: [intend(c, 1)]),
        (["commit_effects"], lambda c: [intend(c, 1), intend(c, 2, "f"), step(c, "s"), requeue(c)]),
        (["commit_effects"], lambda c: [settle(c, 1, key="e"), undo(c), settle(c, 2), fail(c)]),
        (["commit_effects", "commit_effects"], lambda c: [settle(c, 1, EffectState.FAILED), intend(c, 1, attempt=2)]),
        (["commit_effects", "commit_waits"], lambda c: [wait(c, "w"), intend(c, 1), park(c)]),
    ],
)
def test_a_batch_is_written_by_as_few_statements_as_can_be(
    names: list[str], changes: Callable[[Any], Sequence[Change]]
) -> None:
    store = PostgresStore("postgresql://nobody@nowhere/db")
    texts = {statement.text: name for name, statement in store._statements.items()}

    writes = store._committer._writes(7, changes(mock.Mock(run=1, fence=2, thread=3, super_step=1)))

    assert [texts[each.text] for each in writes] == names


def test_a_claim_of_runs_without_effects_asks_for_none() -> None:
    asked: list[str] = []

    async def body(on: Stage) -> None:
        assert isinstance(on.bench.store, PostgresStore)
        worker, claimed = await on.bench.begin()
        await on.bench.commit(worker, step(claimed, "s"), requeue(claimed))
        claim_line = on.bench.store._claim_line

        async def noting(name: str, /, **values: Any) -> list[Any]:
            asked.append(name)
            return await claim_line(name, **values)

        with mock.patch.object(on.bench.store, "_claim_line", noting):
            again = await on.bench.claim_one(worker)
            await on.bench.intended(worker, again)
            await on.bench.commit(worker, requeue(again))
            assert len((await on.bench.claim_one(worker)).effects) == 1

    played(body)

    assert asked == ["claim", "claimed_records", "claim", "claimed_records", "claimed_effects"]


# -- a schema from before ------------------------------------------------------------------------------------

OLD_CLAIM = """
  run, thread, thread_id, agent, fence, super_step, attempt, recoveries, strikes, created_at, arguments, state, now,
  tenant, priority, deadline_at, cancel, recorded, tried, waits
"""

OLD_FUNCTIONS = """
drop function {schema}.claim;
create function {schema}.claim(
  p_worker bigint, p_agents text[], p_queues text[], p_deployment text, p_limit bigint, p_suspects bigint,
  p_ticket bigint
) returns table (run bigint) language plpgsql as 'begin end';
drop function {schema}.retry;
create function {schema}.retry(p_run bigint, p_drop_keys text[]) returns void language plpgsql as 'begin end';
"""

OLD_DATA = """
insert into {schema}.threads (id, last_ordinal, depth, created_at, head, thread_id, agent)
select n, 1, case n when 3 then 0 else 1 end, 0, nullif(n, 3), 't' || n, 'agent' from generate_series(1, 3) n;
insert into {schema}.runs (
  id, thread, ordinal, ready_at, fence, created_at, priority, attempt, recoveries, strikes, super_step, ready, state,
  agent, queue, digest
)
select
  n, n, 1, 0, 1, 0, 0, 1, 0, 0, 1, n <> 3, case n when 1 then 'queued' when 2 then 'held' else 'failed' end, 'agent',
  'default', ''
from generate_series(1, 3) n;
insert into {schema}.checkpoints (
  run, fence, worker, digest, started_at, ended_at, super_step, seq, attempt, kind, failed, key, payload
)
select n, 1, 1, 0, 0, 0, 1, 0, 0, 1, false, '', '' from generate_series(1, 3) n;
"""


def test_a_schema_from_before_there_were_effects_goes_on_also_under_older_processes() -> None:
    async def main() -> None:
        url = postgres.shared().fresh_url()
        name = parse(url).schema
        await _migrate_as_before(url)
        connection = await asyncpg.connect(url.rpartition("&")[0])
        await connection.execute(OLD_FUNCTIONS.format(schema=name))
        await connection.execute(OLD_DATA.format(schema=name))
        await connection.execute(f"select setval('{name}.ids', 100)")
        harness = Fresh()
        harness.url = url
        store = harness.store()

        assert await store.migrate() == (3, len(schema.migrations(parse(url).prefix)))

        await store.open()
        bench = Bench(harness, store)
        worker, other = await bench.worker(), await bench.worker()
        assert (await bench.cancel(2)).state is RunState.CANCELLED
        await connection.execute(f"select {name}.retry(3, '{{}}')")
        arguments = "$1, '{agent}', '{default}', 'v1', 1, 1, 0"
        (row,) = await connection.fetch(f"select {OLD_CLAIM} from {name}.claim({arguments})", other)
        assert row["run"] == 1
        await store.retire(other)
        one, three = await bench.claim(worker)
        assert (one.run, one.effects, one.undoing, three.run) == (1, (), None, 3)
        effect = await bench.done(worker, one)
        await bench.commit(worker, undo(one), hold(one))
        assert (await bench.run(1)).undoing
        assert (await bench.effect(effect)).state is EffectState.DONE
        await connection.close()
        await bench.close()

    asyncio.run(main())


async def _migrate_as_before(url: str) -> None:
    """Bring a fresh schema to version 3."""
    prefix = parse(url).prefix
    migrations, functions = schema.migrations(prefix)[:3], schema.functions(prefix)
    older = tuple(text for text in functions if "perdure.effects" not in text and "view" not in text)
    with (
        mock.patch.object(schema, "migrations", lambda _: migrations),
        mock.patch.object(schema, "functions", lambda _: older),
    ):
        assert await PostgresStore(url).migrate() == (0, 3)
