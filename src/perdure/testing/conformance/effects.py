"""Scenarios: effects, which are in the ledger before the act, and say afterwards what became of it."""

from __future__ import annotations

from typing import Any

from perdure.core.changes import Change, CommitOutcome
from perdure.core.effects import Effect, EffectEvent, EffectState
from perdure.core.records import Kind, RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    blob,
    cancelled,
    fail,
    intend,
    scenario,
    settle,
    step,
)

INTENDED, UNKNOWN, ABSENT = EffectState.INTENDED, EffectState.UNKNOWN, EffectState.ABSENT
FAILED, DONE = EffectState.FAILED, EffectState.DONE


class Acting(Harness):
    """What `IntendEffect` and `SettleEffect` promise."""

    # -- intents ---------------------------------------------------------------------------------------------

    @scenario
    async def test_an_intended_effect_is_in_the_ledger_as_it_was_said(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t", tenant="acme")
        large, effect = blob(b"large" * 10_000), await bench.new_id()
        before = await bench.store.now_us()

        intent = intend(
            claimed, effect, "🦉", name="pay 🦉", code="shop:pay.<locals>.it", idempotency_key="k-1", policy="verify",
            undoable=False, digest=-(2**63), arguments=b"\0args", blobs=(large,),
        )  # fmt: skip
        await bench.commit(worker, intent)

        found, lease_until = await bench.effect(effect), (await bench.worker_row(worker)).lease_until
        assert before <= found.intended_at <= await bench.store.now_us()
        assert found == Effect(
            id=effect,
            run=claimed.run,
            thread=claimed.thread,
            thread_id="t",
            agent="agent",
            tenant="acme",
            super_step=1,
            key="🦉",
            name="pay 🦉",
            code="shop:pay.<locals>.it",
            idempotency_key="k-1",
            policy="verify",
            undoable=False,
            state=INTENDED,
            attempt=1,
            undo_attempt=0,
            digest=-(2**63),
            arguments=b"\0args",
            outcome=None,
            note=None,
            by=None,
            worker=worker,
            fence=claimed.fence,
            rev=1,
            intended_at=found.intended_at,
            settled_at=None,
            lease_until=lease_until,
        )
        event = EffectEvent(effect, 1, found.intended_at, INTENDED, 1, worker, claimed.fence, None, None)
        assert await bench.store.effect_events(effect) == [event]
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}
        assert await bench.steps(claimed.run) == {}

    @scenario
    async def test_an_effect_that_is_intended_again_keeps_its_number_and_its_key(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        first, other = await bench.effect(effect), await bench.new_id()

        changed = {"idempotency_key": "another", "arguments": b"others", "policy": "ask", "undoable": False}
        await bench.commit(worker, intend(claimed, other, "e", 2, **changed, name="other", code="other", digest=8))

        second = await bench.effect(effect)
        kept = ("idempotency_key", "arguments", "policy", "undoable", "name", "code", "digest")
        assert [getattr(second, field) for field in kept] == [getattr(first, field) for field in kept]
        assert (second.state, second.attempt, second.rev) == (INTENDED, 2, 2)
        assert second.intended_at >= first.intended_at
        assert await bench.store.get_effects([other]) == []
        assert await bench.events(effect) == [(INTENDED, 1), (INTENDED, 2)]

    @scenario
    async def test_effects_of_other_keys_super_steps_and_runs_are_other_effects(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        first, second = await bench.done(worker, claimed, "e"), await bench.intended(worker, claimed, "e2")
        await bench.commit(worker, again(claimed, 2))
        third = await bench.intended(worker, claimed, "e", super_step=2)
        other, theirs = await bench.begin("another")
        fourth = await bench.intended(other, theirs, "e")

        rows = await bench.store.get_effects([first, second, third, fourth])

        assert len({first, second, third, fourth}) == 4
        assert [(row.run, row.super_step, row.key) for row in rows] == [
            (claimed.run, 1, "e"),
            (claimed.run, 1, "e2"),
            (claimed.run, 2, "e"),
            (theirs.run, 1, "e"),
        ]
        assert [row.state for row in rows] == [DONE, INTENDED, INTENDED, INTENDED]

    @scenario
    async def test_one_batch_intends_for_many_runs(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(20)
        claims = await bench.claim(worker)
        places = [(each, key) for key in ("e1", "e2") for each in claims]
        ids = [await bench.new_id() for _ in places]

        await bench.commit(worker, *(intend(at, id, key) for (at, key), id in zip(places, ids, strict=True)))
        outcomes = [
            settle(at, id, key=key, outcome=f"{id}".encode()) for (at, key), id in zip(places, ids, strict=True)
        ]
        await bench.commit(worker, *outcomes, *(step(each, "s") for each in claims))

        rows = {row.id: row for row in await bench.store.get_effects(ids)}
        assert [(rows[id].run, rows[id].key) for id in ids] == [(at.run, key) for at, key in places]
        assert {(row.state, row.outcome == f"{row.id}".encode()) for row in rows.values()} == {(DONE, True)}
        for claimed in claims:
            assert (await bench.steps(claimed.run)).keys() == {"e1", "e2", "s"}

    @scenario
    async def test_an_intent_of_a_run_that_does_not_know_of_its_cancellation_is_not_written(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        effect = await bench.new_id()

        for _ in range(2):
            outcome = await bench.store.commit(worker, [step(claimed, "s"), intend(claimed, effect)])
            assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))

        assert await bench.store.get_effects([effect]) == [] == await bench.store.effect_events(effect)
        assert await bench.steps(claimed.run) == {"s": b"result"}

    @scenario
    async def test_a_run_that_knows_of_its_cancellation_may_act(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.cancel(claimed.run)
        effect = await bench.new_id()
        told = CommitOutcome(cancelled=frozenset({claimed.run}))

        assert await bench.store.commit(worker, [intend(claimed, effect, cancelled=True)]) == told
        assert await bench.store.commit(worker, [settle(claimed, effect, key="e")]) == told

        assert (await bench.effect(effect)).state is DONE
        assert await bench.steps(claimed.run) == {"e": b"receipt"}

    @scenario
    async def test_what_was_intended_before_the_cancellation_is_settled_after_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        await bench.cancel(claimed.run)

        outcome = await bench.store.commit(worker, [settle(claimed, effect, key="e"), cancelled(claimed)])

        assert outcome == CommitOutcome(cancelled=frozenset({claimed.run}))
        assert (await bench.effect(effect)).state is DONE
        assert await bench.state(claimed.run) is RunState.CANCELLED

    # -- outcomes --------------------------------------------------------------------------------------------

    @scenario
    async def test_an_effect_that_was_done_is_on_record_with_its_outcome(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        intended, large = await bench.effect(effect), blob(b"large" * 10_000)

        await bench.commit(worker, settle(claimed, effect, key="e", outcome=b"\0receipt", blobs=(large,), seq=3))

        found = await bench.effect(effect)
        assert (found.state, found.outcome, found.rev) == (DONE, b"\0receipt", 2)
        assert (found.idempotency_key, found.intended_at) == (intended.idempotency_key, intended.intended_at)
        assert (found.note, found.by) == (None, None)
        assert found.settled_at is not None and intended.intended_at <= found.settled_at <= await bench.store.now_us()
        event = EffectEvent(effect, 2, found.settled_at, DONE, 1, worker, claimed.fence, None, None)
        assert (await bench.store.effect_events(effect))[1:] == [event]
        row = (await bench.log(claimed.run))[-1]
        assert (row.key, row.kind, row.seq, row.fence, row.worker) == ("e", Kind.STEP, 3, claimed.fence, worker)
        assert (row.payload, row.failed, row.digest) == (b"\0receipt", False, 7)
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}

    @scenario
    async def test_an_effect_becomes_what_was_seen_of_it(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        seen = (DONE, FAILED, ABSENT, UNKNOWN)
        effects = [await bench.intended(worker, claimed, state.value) for state in seen]

        words: list[dict[str, Any]] = [
            {"outcome": f"of {state}".encode(), "note": f"why {state} 🦉", "by": "ann"} for state in seen
        ]
        await bench.commit(
            worker, *(settle(claimed, id, state, **said) for id, state, said in zip(effects, seen, words, strict=True))
        )

        rows = await bench.store.get_effects(effects)
        assert [row.state for row in rows] == list(seen)
        assert [{"outcome": row.outcome, "note": row.note, "by": row.by} for row in rows] == words
        assert await bench.steps(claimed.run) == {}
        for id, said in zip(effects, words, strict=True):
            event = (await bench.store.effect_events(id))[-1]
            assert (event.note, event.by) == (said["note"], said["by"])

    @scenario
    async def test_what_is_unknown_is_found_out_later(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        found_out = (DONE, FAILED, ABSENT)
        effects = [await bench.intended(worker, claimed, state.value) for state in found_out]
        unknown = [settle(claimed, id, UNKNOWN, outcome=b"timeout", note="it took too long") for id in effects]
        await bench.commit(worker, *unknown)

        for id, state in zip(effects, found_out, strict=True):
            await bench.commit(worker, settle(claimed, id, state, key=state.value))

        rows = await bench.store.get_effects(effects)
        assert [(row.state, row.note, row.rev) for row in rows] == [(state, None, 3) for state in found_out]
        assert [row.outcome for row in rows] == [b"receipt", b"timeout", b"timeout"]
        assert (await bench.steps(claimed.run)).keys() == {state.value for state in found_out}

    @scenario
    async def test_more_may_be_said_of_what_is_unknown(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        first = settle(claimed, effect, UNKNOWN, note="it took too long")
        second = settle(claimed, effect, UNKNOWN, note="it took too long, and its provider cannot tell")
        await bench.commit(worker, first)

        await bench.commit(worker, second)
        await bench.commit(worker, first, second)  # an answer was lost, and they are sent again

        assert (await bench.effect(effect)).note == second.note
        assert [event.note for event in await bench.store.effect_events(effect)] == [None, first.note, second.note]

    @scenario
    async def test_an_unknown_effect_may_be_the_failure_of_its_step(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        await bench.commit(worker, settle(claimed, effect, UNKNOWN))

        await bench.commit(worker, settle(claimed, effect, UNKNOWN, key="e", outcome=b"nobody knows"))

        assert (await bench.effect(effect)).state is UNKNOWN
        (record,) = [row for row in await bench.log(claimed.run) if row.key == "e"]
        assert (record.payload, record.failed) == (b"nobody knows", True)

    @scenario
    async def test_what_did_not_happen_may_be_tried_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        before = (INTENDED, UNKNOWN, ABSENT, FAILED)
        effects = [await bench.intended(worker, claimed, state.value) for state in before]
        for id, state in zip(effects, before, strict=True):
            if state is not INTENDED:
                await bench.commit(worker, settle(claimed, id, state, outcome=b"error", note="why"))

        for id, state in zip(effects, before, strict=True):
            await bench.commit(worker, intend(claimed, id, state.value, 2))

        rows = await bench.store.get_effects(effects)
        assert {(row.state, row.attempt) for row in rows} == {(INTENDED, 2)}
        assert [row.note for row in rows] == [None, "why", "why", "why"]
        for id in effects:
            await bench.commit(worker, settle(claimed, id, attempt=2))
        assert {(row.state, row.attempt) for row in await bench.store.get_effects(effects)} == {(DONE, 2)}

    @scenario
    async def test_a_failed_effect_is_tried_again_in_the_batch_that_says_so(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        batch: list[Change] = [settle(claimed, effect, FAILED, outcome=b"boom"), intend(claimed, effect, attempt=2)]

        for _ in range(2):
            await bench.commit(worker, *batch)

        assert await bench.events(effect) == [(INTENDED, 1), (FAILED, 1), (INTENDED, 2)]
        found = await bench.effect(effect)
        assert (found.state, found.attempt, found.outcome, found.rev) == (INTENDED, 2, b"boom", 3)

    @scenario
    async def test_a_failed_effect_of_a_run_that_is_sent_on_is_tried_again_under_its_key(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        await bench.commit(worker, settle(claimed, effect, FAILED, key="e", outcome=b"boom"), fail(claimed))
        first = await bench.effect(effect)
        await bench.store.retry(claimed.run, ["e"])

        second = await bench.claim_one(worker)
        await bench.commit(worker, intend(second, await bench.new_id(), "e", 2, idempotency_key="another"))

        assert second.effects == (first,)
        found = await bench.effect(effect)
        assert (found.state, found.attempt, found.fence) == (INTENDED, 2, second.fence)
        assert found.idempotency_key == first.idempotency_key
