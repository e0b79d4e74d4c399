"""Scenarios: the ledger as people read it, and what they have found out."""

from __future__ import annotations

import asyncio

from perdure.core.effects import EffectEvent, EffectState
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    blob,
    cancelled,
    end,
    fail,
    found_out,
    hold,
    intend,
    requeue,
    scenario,
    settle,
    undo,
)

INTENDED, UNKNOWN, ABSENT = EffectState.INTENDED, EffectState.UNKNOWN, EffectState.ABSENT
FAILED, DONE = EffectState.FAILED, EffectState.DONE
UNDOING, UNDONE, UNDO_FAILED = EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED


class Auditing(Harness):
    """What `effects`, `get_effects`, `effect_events` and `resolve` promise."""

    # -- reading ---------------------------------------------------------------------------------------------

    @scenario
    async def test_the_ledger_shows_what_all_runs_did(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start("one", tenant="acme")
        await bench.start("two", agent="b")
        one, two = await bench.claim_one(worker), await bench.claim_one(worker, agents=("b",))
        paid, mailed = await bench.done(worker, one, "e1"), await bench.intended(worker, one, "e2", name="mail")
        theirs = await bench.intended(worker, two, "e1", undoable=False)
        await bench.commit(worker, settle(two, theirs, FAILED))
        await bench.commit(worker, end(one))
        await bench.start("one", tenant="acme")
        second = await bench.claim_one(worker)
        later = await bench.intended(worker, second, "e1")

        everything = [paid, mailed, theirs, later]
        assert await bench.ledger() == everything
        assert await bench.ledger(run=one.run) == [paid, mailed] and await bench.ledger(run=second.run) == [later]
        assert await bench.ledger(thread_id="one") == [paid, mailed, later] == await bench.ledger(agent="agent")
        assert await bench.ledger(agent="b") == [theirs] == await bench.ledger(undoable=False)
        assert await bench.ledger(tenant="acme") == [paid, mailed, later] == await bench.ledger(undoable=True)
        assert await bench.ledger(name="mail") == [mailed] and await bench.ledger(name="pay") == [paid, theirs, later]
        states = [await bench.ledger(state=state) for state in (DONE, UNKNOWN, FAILED, INTENDED, ABSENT)]
        assert states == [[paid], [mailed], [theirs], [later], []]
        assert await bench.ledger(run=one.run, state=DONE, undoable=True, name="pay", tenant="acme") == [paid]
        assert await bench.ledger(run=one.run, thread_id="two") == [] == await bench.ledger(run=10**15)
        assert await bench.ledger(thread_id="nobody") == [] == await bench.ledger(name="nothing")

    @scenario
    async def test_the_ledger_comes_in_pages(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effects = [await bench.done(worker, claimed, f"e{n}") for n in range(5)]
        other = await bench.intended(worker, claimed, "other")

        assert await bench.ledger(limit=2) == effects[:2]
        assert await bench.ledger(limit=2, after=effects[1]) == effects[2:4]
        assert await bench.ledger(limit=2, after=effects[3], state=DONE) == effects[4:]
        assert await bench.ledger(after=effects[3], run=claimed.run, limit=LIST_ROWS_MAX + 1) == [effects[4], other]
        assert await bench.ledger(limit=1, state=INTENDED, thread_id="t") == [other]
        assert await bench.ledger(after=other) == [] == await bench.ledger(limit=0) == await bench.ledger(limit=-1)

    @scenario
    async def test_effects_are_got_by_their_numbers(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await bench.done(worker, claimed, "e1"), await bench.intended(worker, claimed, "e2")

        found = await bench.store.get_effects([second, first, 10**15, second])

        assert [row.id for row in found] == [first, second]
        assert await bench.store.get_effects([]) == [] == await bench.store.effect_events(10**15)

    @scenario
    async def test_every_write_to_an_effect_is_an_event(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.intended(worker, first)
        await bench.commit(worker, settle(first, effect, UNKNOWN, note="it took too long"))
        await bench.die(worker)
        other = await bench.worker()
        second = await bench.claim_one(other)
        await bench.commit(other, intend(second, effect, attempt=2))
        await bench.commit(other, settle(second, effect, FAILED, attempt=2, by="bob"), fail(second))

        events = await bench.store.effect_events(effect)

        assert [event.rev for event in events] == [1, 2, 3, 4] and (await bench.effect(effect)).rev == 4
        assert [event.at for event in events] == sorted(event.at for event in events)
        own, theirs = (worker, first.fence), (other, second.fence)
        assert events == [
            EffectEvent(effect, 1, events[0].at, INTENDED, 1, *own, None, None),
            EffectEvent(effect, 2, events[1].at, UNKNOWN, 1, *own, None, "it took too long"),
            EffectEvent(effect, 3, events[2].at, INTENDED, 2, *theirs, None, None),
            EffectEvent(effect, 4, events[3].at, FAILED, 2, *theirs, "bob", None),
        ]

    # -- resolving -------------------------------------------------------------------------------------------

    @scenario
    async def test_a_person_says_what_became_of_an_unknown_effect(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        await bench.commit(worker, settle(claimed, effect, UNKNOWN, outcome=b"timeout", note="too long"), hold(claimed))
        large, before = blob(b"large" * 10_000), await bench.effect(effect)

        row = await bench.store.resolve(
            found_out(effect, DONE, b"\0receipt", by="ann 🦉", note="it is on the bill 🦉"), [large]
        )

        assert row == await bench.effect(effect) and row is not None
        assert (row.state, row.outcome, row.by, row.note) == (DONE, b"\0receipt", "ann 🦉", "it is on the bill 🦉")
        assert (row.rev, row.worker, row.fence, row.attempt) == (3, worker, claimed.fence, 1)
        assert row.settled_at is not None and before.settled_at is not None and row.settled_at >= before.settled_at
        event = EffectEvent(effect, 3, row.settled_at, DONE, 1, None, None, "ann 🦉", "it is on the bill 🦉")
        assert (await bench.store.effect_events(effect))[2:] == [event]
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}
        assert await bench.steps(claimed.run) == {} and await bench.state(claimed.run) is RunState.HELD

    @scenario
    async def test_an_intent_that_was_left_behind_is_resolved_as_unknown(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        claims = await bench.claim(worker)
        effects = [await bench.intended(worker, each) for each in claims]
        await bench.commit(worker, end(claims[0]), fail(claims[1]), hold(claims[2]))
        await bench.cancel(claims[3].run)
        await bench.store.commit(worker, [cancelled(claims[3])])

        for id, state in zip(effects, (DONE, FAILED, ABSENT, DONE), strict=True):
            row = await bench.store.resolve(found_out(id, state, by=None, note=None))
            assert row is not None and (row.state, row.outcome, row.by, row.note) == (state, None, None, None)

        rows = await bench.store.get_effects(effects)
        assert [(row.state, row.rev) for row in rows] == [(DONE, 2), (FAILED, 2), (ABSENT, 2), (DONE, 2)]

    @scenario
    async def test_nothing_is_resolved_while_a_worker_may_be_at_it(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(2)
        queued, running = await bench.claim(worker)
        effects = [await bench.intended(worker, each) for each in (queued, running)]
        unknown = [settle(queued, effects[0], UNKNOWN), settle(running, effects[1], UNKNOWN)]
        await bench.commit(worker, *unknown, requeue(queued, 60))
        before, large = await bench.store.get_effects(effects), blob(b"large")

        for row in before:
            assert await bench.store.resolve(found_out(row.id, DONE, b"receipt"), [large]) == row

        assert await bench.store.get_effects(effects) == before
        assert await bench.events(effects[0]) == [(INTENDED, 1), (UNKNOWN, 1)]
        assert await bench.store.blobs(queued.thread, [large.digest]) == {}

    @scenario
    async def test_only_what_nobody_knows_is_resolved(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        seen = (DONE, FAILED, ABSENT)
        effects = [await bench.intended(worker, claimed, state.value) for state in seen]
        unknown, undoing = await bench.intended(worker, claimed, "unknown"), await bench.done(worker, claimed, "undone")
        await bench.commit(worker, *(settle(claimed, id, state) for id, state in zip(effects, seen, strict=True)))
        await bench.commit(worker, undo(claimed), intend(claimed, undoing, "undone", undo=True))
        await bench.commit(worker, hold(claimed))
        before = await bench.store.get_effects([*effects, unknown, undoing])

        for row in before[:3]:
            for state in (DONE, FAILED, ABSENT, UNKNOWN, UNDONE):
                assert await bench.store.resolve(found_out(row.id, state, b"other")) == row
        for state in (INTENDED, UNKNOWN, UNDOING, UNDONE, UNDO_FAILED):
            assert await bench.store.resolve(found_out(unknown, state)) == before[3]
        for state in (DONE, UNDONE, UNDO_FAILED):
            assert await bench.store.resolve(found_out(undoing, state)) == before[4]

        assert await bench.store.get_effects([*effects, unknown, undoing]) == before
        assert await bench.store.resolve(found_out(10**15, DONE)) is None

    @scenario
    async def test_what_a_person_said_once_is_known_when_it_is_said_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        await bench.commit(worker, hold(claimed))
        said = found_out(effect, ABSENT)
        first = await bench.store.resolve(said)

        assert await bench.store.resolve(said) == first
        assert await bench.store.resolve(found_out(effect, DONE, b"receipt")) == first

        assert await bench.effect(effect) == first
        assert await bench.events(effect) == [(INTENDED, 1), (ABSENT, 1)]

    @scenario
    async def test_a_run_that_is_released_goes_on_from_what_was_found_out(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        done, absent = [await bench.intended(worker, first, key) for key in ("done", "absent")]
        await bench.commit(worker, hold(first))
        await bench.store.resolve(found_out(done, DONE, b"receipt"))
        await bench.store.resolve(found_out(absent, ABSENT))
        await bench.store.release(first.run)

        second = await bench.claim_one(worker)

        assert [(row.id, row.state, row.outcome) for row in second.effects] == [
            (absent, ABSENT, None),
            (done, DONE, b"receipt"),
        ]
        await bench.commit(worker, intend(second, absent, "absent", 2))
        await bench.commit(worker, settle(second, absent, attempt=2, key="absent"))
        assert (await bench.effect(absent)).by is None

    @scenario
    async def test_a_resolution_and_a_release_at_once_are_one_after_the_other(self, bench: Bench) -> None:
        """Whichever was first: the next owner knows what was found out, or nothing was."""
        worker = await bench.worker()
        await bench.start_many(8)
        claims = await bench.claim(worker)
        effects = [await bench.intended(worker, each) for each in claims]
        await bench.commit(worker, *(hold(each) for each in claims))
        other = await bench.clone()

        for claimed, effect in zip(claims, effects, strict=True):
            await asyncio.gather(bench.store.resolve(found_out(effect, DONE)), other.release(claimed.run))

        rows = {row.id: row for row in await bench.store.get_effects(effects)}
        for claimed in await bench.claim(worker):
            assert [(row.id, row.state) for row in claimed.effects] == [
                (row.id, row.state) for row in rows.values() if row.run == claimed.run
            ]
