"""Scenarios: what is said of effects again, too late, or by somebody else, and what nobody can say."""

from __future__ import annotations

from perdure.core.changes import Change, CommitOutcome
from perdure.core.effects import EffectState
from perdure.core.records import RunState
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    blob,
    end,
    fail,
    hold,
    intend,
    requeue,
    scenario,
    settle,
    step,
)

INTENDED, UNKNOWN, ABSENT = EffectState.INTENDED, EffectState.UNKNOWN, EffectState.ABSENT
FAILED, DONE = EffectState.FAILED, EffectState.DONE


class Vouching(Harness):
    """Who may write the ledger, and that nobody need say that an effect is unknown."""

    # -- sent again ------------------------------------------------------------------------------------------

    @scenario
    async def test_what_was_written_of_an_effect_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect, other = await bench.new_id(), await bench.new_id()
        put = blob(b"data")
        batches: list[list[Change]] = [
            [step(claimed, "s"), intend(claimed, effect, blobs=(put,)), intend(claimed, other, "other")],
            [settle(claimed, effect, UNKNOWN, note="it took too long")],
            [settle(claimed, effect, ABSENT, note="asked"), settle(claimed, other, FAILED)],
            [intend(claimed, effect, attempt=2), intend(claimed, other, "other", attempt=2)],
            [settle(claimed, effect, attempt=2, key="e"), settle(claimed, other, UNKNOWN, 2, key="other", seq=2)],
        ]
        for batch in batches:
            await bench.commit(worker, *batch)
            rows = await bench.store.get_effects([effect, other])
            events = [await bench.store.effect_events(each) for each in (effect, other)]

            await bench.commit(worker, *batch)

            assert await bench.store.get_effects([effect, other]) == rows
            assert [await bench.store.effect_events(each) for each in (effect, other)] == events
        assert await bench.events(effect) == [(INTENDED, 1), (UNKNOWN, 1), (ABSENT, 1), (INTENDED, 2), (DONE, 2)]
        assert await bench.events(other) == [(INTENDED, 1), (FAILED, 1), (INTENDED, 2), (UNKNOWN, 2)]

    @scenario
    async def test_an_outcome_and_the_end_of_its_run_may_be_sent_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")

        for _ in range(2):
            await bench.commit(worker, settle(claimed, effect, key="e"), end(claimed))

        assert await bench.events(effect) == [(INTENDED, 1), (DONE, 1)]
        assert await bench.state(claimed.run) is RunState.COMPLETED

    @scenario
    async def test_an_outcome_on_record_may_be_sent_again_even_after_a_new_claim(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        done = settle(claimed, effect, key="e")
        await bench.commit(worker, done)
        await bench.commit(worker, requeue(claimed))
        await bench.claim_one(worker)
        before = await bench.effect(effect)

        await bench.commit(worker, done)

        assert await bench.effect(effect) == before
        lost = await bench.store.commit(worker, [settle(claimed, effect, UNKNOWN)])
        assert lost == CommitOutcome(lost=frozenset({claimed.run}))

    @scenario
    async def test_an_intent_whose_answer_was_lost_with_its_claim_is_lost(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        await bench.die(worker)
        other = await bench.worker()
        second = await bench.claim_one(other)

        assert await bench.store.commit(worker, [intend(claimed, effect)]) == CommitOutcome(alive=False)
        outcome = await bench.store.commit(other, [intend(claimed, effect)])

        assert outcome == CommitOutcome(lost=frozenset({claimed.run}))
        assert [row.state for row in second.effects] == [UNKNOWN]
        assert await bench.events(effect) == [(INTENDED, 1)]

    # -- guarded ---------------------------------------------------------------------------------------------

    @scenario
    async def test_only_the_owner_writes_the_ledger(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect, fresh = await bench.intended(worker, first), await bench.new_id()
        await bench.commit(worker, requeue(first))
        second = await bench.claim_one(worker)
        stranger = await bench.worker()
        lost = CommitOutcome(lost=frozenset({first.run}))

        for sender, claimed in ((worker, first), (stranger, second)):
            for change in (intend(claimed, fresh, "new"), intend(claimed, effect, attempt=2), settle(claimed, effect)):
                assert await bench.store.commit(sender, [change]) == lost
        await bench.store.retire(worker)
        assert await bench.store.commit(worker, [intend(second, fresh, "new")]) == CommitOutcome(alive=False)

        assert await bench.ledger() == [effect] and await bench.events(effect) == [(INTENDED, 1)]

    @scenario
    async def test_what_does_not_fit_the_state_of_an_effect_is_refused_for_its_run(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(5)
        claims = await bench.claim(worker)
        effects = [await bench.intended(worker, each) for each in claims]
        for claimed, effect in zip(claims[:3], effects, strict=False):
            await bench.commit(worker, settle(claimed, effect))
        wrong: list[Change] = [
            intend(claims[0], effects[0], attempt=2),
            settle(claims[1], effects[1], FAILED),
            settle(claims[2], effects[2], attempt=2),
            settle(claims[3], effects[3], attempt=2),
        ]

        outcome = await bench.store.commit(
            worker, [*wrong, settle(claims[4], effects[4]), *(step(each, "s") for each in claims)]
        )

        assert outcome.refused.keys() == {each.run for each in claims[:4]}
        assert all(outcome.refused.values()) and not outcome.lost
        assert [row.state for row in await bench.store.get_effects(effects)] == [DONE, DONE, DONE, INTENDED, DONE]
        for claimed in claims:
            assert await bench.steps(claimed.run) == ({"s": b"result"} if claimed is claims[4] else {})

    @scenario
    async def test_what_is_not_in_the_ledger_of_its_run_is_refused(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        other, theirs = await bench.begin("another")
        effect = await bench.intended(other, theirs)

        for change in (
            settle(claimed, 10**15),
            settle(claimed, effect),
            intend(claimed, await bench.new_id(), undo=True),
        ):
            outcome = await bench.store.commit(worker, [change])
            assert outcome.refused.keys() == {claimed.run}, change

        assert await bench.events(effect) == [(INTENDED, 1)] and await bench.ledger(run=claimed.run) == []

    @scenario
    async def test_a_record_of_another_claim_refuses_the_outcome(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.intended(worker, first, "e")
        await bench.commit(worker, step(first, "e"), requeue(first))
        second = await bench.claim_one(worker)

        outcome = await bench.store.commit(worker, [settle(second, effect, key="e")])

        assert outcome.refused.keys() == {first.run}
        assert await bench.events(effect) == [(INTENDED, 1)]
        assert await bench.steps(first.run) == {"e": b"result"}

    # -- unknown ---------------------------------------------------------------------------------------------

    @scenario
    async def test_an_intent_whose_claim_is_over_is_unknown(self, bench: Bench) -> None:
        """However it was over; nobody writes so."""
        worker = await bench.worker()
        await bench.start_many(6)
        failed, ended, requeued, held, given_back, kept = claims = await bench.claim(worker)
        effects = [await bench.intended(worker, each) for each in claims]

        await bench.commit(worker, fail(failed), end(ended), requeue(requeued, 60), hold(held))
        await bench.store.give_back(worker, keep=[kept.run])

        rows = await bench.store.get_effects(effects)
        assert [row.state for row in rows] == [UNKNOWN] * 5 + [INTENDED]
        assert {(row.rev, row.note, row.settled_at) for row in rows} == {(1, None, None)}
        assert await bench.ledger(state=UNKNOWN) == effects[:5] and await bench.ledger(state=INTENDED) == effects[5:]
        assert given_back.run in {row.run for row in rows}
        await bench.store.retire(worker)
        assert await bench.ledger(state=UNKNOWN) == effects

    @scenario
    async def test_the_intents_of_a_dead_worker_are_unknown_to_the_next_owner(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        open_, done = await bench.intended(worker, first, "b"), await bench.done(worker, first, "c")
        failed = await bench.intended(worker, first, "a")
        await bench.commit(worker, settle(first, failed, FAILED, outcome=b"boom"))
        before = (await bench.worker_row(worker)).lease_until
        await bench.die(worker)

        other = await bench.worker()
        second = await bench.claim_one(other)

        assert [(row.id, row.state) for row in second.effects] == [(failed, FAILED), (open_, UNKNOWN), (done, DONE)]
        unknown = second.effects[1]
        assert (unknown.worker, unknown.fence, unknown.lease_until) == (worker, first.fence, before)
        assert second.undoing is None

    @scenario
    async def test_a_claim_brings_the_effects_of_its_super_step_only(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        assert first.effects == ()
        await bench.done(worker, first, "e")
        await bench.commit(worker, again(first, 2))
        kept = await bench.intended(worker, first, "e", super_step=2)
        await bench.commit(worker, requeue(first))

        second = await bench.claim_one(worker)

        assert [row.id for row in second.effects] == [kept]
        assert second.effects == (await bench.effect(kept),)

    @scenario
    async def test_the_next_owner_finds_out_what_is_unknown_and_says_so_without_a_new_intent(
        self, bench: Bench
    ) -> None:
        worker, first = await bench.begin("t")
        effects = [await bench.intended(worker, first, key) for key in ("done", "absent", "unknown")]
        await bench.die(worker)
        other = await bench.worker()
        second = await bench.claim_one(other)

        batch: list[Change] = [
            settle(second, effects[0], key="done", note="asked"),
            settle(second, effects[1], ABSENT, note="asked"),
            settle(second, effects[2], UNKNOWN, note="asked in vain"),
        ]
        for _ in range(2):
            await bench.commit(other, *batch)

        rows = await bench.store.get_effects(effects)
        assert [(row.state, row.rev) for row in rows] == [(DONE, 2), (ABSENT, 2), (UNKNOWN, 2)]
        assert {(row.worker, row.fence) for row in rows} == {(worker, first.fence)}
        events = [(await bench.store.effect_events(id))[-1] for id in effects]
        assert {(event.worker, event.fence) for event in events} == {(other, second.fence)}
        await bench.commit(other, intend(second, effects[1], "absent", 2))
        found = await bench.effect(effects[1])
        assert (found.state, found.worker, found.fence) == (INTENDED, other, second.fence)

    @scenario
    async def test_who_dispatched_it_last_may_do_so_until_its_lease_ends(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed)
        before = (await bench.effect(effect)).lease_until
        assert before == (await bench.worker_row(worker)).lease_until

        await bench.advance_s(10)
        await bench.store.renew(worker, 30_000_000)

        assert (await bench.effect(effect)).lease_until == (await bench.worker_row(worker)).lease_until
