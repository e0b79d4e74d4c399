"""Scenarios: effects that are undone, since their run has failed or is to be cancelled."""

from __future__ import annotations

from perdure.core.changes import Change, CommitOutcome
from perdure.core.effects import EffectState
from perdure.core.effects import Undoing as Decision
from perdure.core.records import Claimed, IfBusy, Kind, Outcome, RunState
from perdure.store.protocol import Hint
from perdure.testing.conformance.harness import (
    Bench,
    Harness,
    again,
    blob,
    cancelled,
    end,
    fail,
    found_out,
    hints,
    hold,
    intend,
    parent,
    requeue,
    scenario,
    settle,
    undo,
)

INTENDED, UNKNOWN, DONE, FAILED = EffectState.INTENDED, EffectState.UNKNOWN, EffectState.DONE, EffectState.FAILED
UNDOING, UNDONE, UNDO_FAILED = EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED


class Undoing(Harness):
    """What `BeginUndo`, the undos of effects, `cancel` and `retry` promise of each other."""

    # -- the decision ----------------------------------------------------------------------------------------

    @scenario
    async def test_how_a_run_will_end_is_decided_once(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        large = blob(b"large" * 10_000)
        assert claimed.undoing is None and not (await bench.run(claimed.run)).undoing

        await bench.commit(worker, undo(claimed, RunState.FAILED, b"\0why", blobs=(large,)))
        await bench.commit(worker, undo(claimed, RunState.CANCELLED, b"another"))

        row = await bench.run(claimed.run)
        assert row.undoing and (row.state, row.worker) == (RunState.RUNNING, worker)
        assert await bench.store.blobs(claimed.thread, [large.digest]) == {large.digest: large.data}
        await bench.commit(worker, requeue(claimed))
        assert (await bench.claim_one(worker)).undoing == Decision(RunState.FAILED, b"\0why")

    @scenario
    async def test_the_decision_outlives_its_worker(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        done, open_ = await bench.done(worker, first, "a"), await bench.done(worker, first, "b")
        await bench.commit(worker, again(first, 2), undo(first, RunState.CANCELLED))
        await bench.commit(worker, intend(first, open_, "b", undo=True))
        await bench.die(worker)

        second = await bench.claim_one(await bench.worker())

        assert second.undoing == Decision(RunState.CANCELLED, b"why") and (await bench.run(first.run)).undoing
        assert second.super_step == 2 and second.effects == ()
        rows = await bench.store.get_effects([done, open_])
        assert [row.state for row in rows] == [DONE, UNDOING]
        assert await bench.ledger(run=first.run, state=UNDOING) == [open_]

    @scenario
    async def test_only_the_owner_decides(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.commit(worker, requeue(first))
        second = await bench.claim_one(worker)
        stranger = await bench.worker()
        lost = CommitOutcome(lost=frozenset({first.run}))

        assert await bench.store.commit(worker, [undo(first)]) == lost
        assert await bench.store.commit(stranger, [undo(second)]) == lost

        assert not (await bench.run(first.run)).undoing

    @scenario
    async def test_a_run_stays_one_that_was_undone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        batch: list[Change] = [undo(claimed), fail(claimed, b"why")]

        for _ in range(2):
            await bench.commit(worker, *batch)

        row = await bench.run(claimed.run)
        assert (row.state, row.undoing) == (RunState.FAILED, True)
        assert await bench.store.outcomes([claimed.run]) == [Outcome(claimed.run, True, b"why")]

    # -- undos -----------------------------------------------------------------------------------------------

    @scenario
    async def test_an_effect_is_undone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.done(worker, claimed, "e")
        before = await bench.effect(effect)
        await bench.commit(worker, undo(claimed))

        await bench.commit(worker, intend(claimed, effect, "e", undo=True))
        begun = await bench.effect(effect)
        await bench.commit(worker, settle(claimed, effect, UNDONE, outcome=b"refund", note="refunded"))

        assert (begun.state, begun.attempt, begun.undo_attempt, begun.rev) == (UNDOING, 1, 1, 3)
        assert begun.intended_at >= before.intended_at and begun.outcome == b"receipt"
        found = await bench.effect(effect)
        assert (found.state, found.attempt, found.undo_attempt, found.rev) == (UNDONE, 1, 1, 4)
        assert (found.outcome, found.note, found.idempotency_key) == (b"receipt", "refunded", before.idempotency_key)
        assert found.settled_at is not None and begun.settled_at is not None and found.settled_at >= begun.settled_at
        assert await bench.steps(claimed.run) == {"e": b"receipt"}

    @scenario
    async def test_an_undo_that_failed_is_tried_again(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.intended(worker, claimed, "e")
        await bench.commit(worker, settle(claimed, effect, FAILED), intend(claimed, effect, "e", 2))
        await bench.commit(worker, settle(claimed, effect, attempt=2), undo(claimed))
        batches: list[list[Change]] = [
            [intend(claimed, effect, "e", 1, undo=True)],
            [settle(claimed, effect, UNDO_FAILED, 1, note="boom"), intend(claimed, effect, "e", 2, undo=True)],
            [settle(claimed, effect, UNDO_FAILED, 2, note="boom again")],
            [intend(claimed, effect, "e", 3, undo=True)],
            [settle(claimed, effect, UNDONE, 3)],
        ]
        for batch in batches:
            await bench.commit(worker, *batch)
            row, events = await bench.effect(effect), await bench.events(effect)

            await bench.commit(worker, *batch)

            assert (await bench.effect(effect), await bench.events(effect)) == (row, events)

        found = await bench.effect(effect)
        assert (found.state, found.attempt, found.undo_attempt) == (UNDONE, 2, 3)
        assert (found.outcome, found.note) == (b"receipt", None)
        assert (await bench.events(effect))[4:] == [
            (UNDOING, 1), (UNDO_FAILED, 1), (UNDOING, 2), (UNDO_FAILED, 2), (UNDOING, 3), (UNDONE, 3),
        ]  # fmt: skip

    @scenario
    async def test_an_undo_that_was_cut_short_is_tried_again_by_the_next_owner(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.done(worker, first, "e")
        await bench.commit(worker, undo(first), intend(first, effect, "e", undo=True))
        await bench.die(worker)
        other = await bench.worker()
        second = await bench.claim_one(other)
        assert [(row.state, row.undo_attempt) for row in second.effects] == [(UNDOING, 1)]

        await bench.commit(other, intend(second, effect, "e", 2, undo=True))
        await bench.commit(other, settle(second, effect, UNDONE, 2), fail(second))

        found = await bench.effect(effect)
        assert (found.state, found.undo_attempt, found.worker, found.fence) == (UNDONE, 2, other, second.fence)

    @scenario
    async def test_the_end_of_an_undo_is_progress_and_its_intent_is_none(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effects = [await bench.done(worker, claimed, f"e{n}") for n in range(3)]
        await bench.commit(worker, undo(claimed))
        await bench.die(worker)
        strikes = []
        for effect, state in zip(effects, (UNDONE, UNDO_FAILED, None), strict=True):
            worker = await bench.worker()
            claimed = await bench.claim_one(worker)
            await bench.commit(worker, intend(claimed, effect, f"e{effects.index(effect)}", undo=True))
            if state is not None:
                await bench.commit(worker, settle(claimed, effect, state))
            await bench.die(worker)
            strikes.append((await bench.run(claimed.run)).strikes)

        assert strikes == [0, 0, 1]

    @scenario
    async def test_what_was_not_done_is_not_undone(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        claims = await bench.claim(worker)
        effects = [await bench.intended(worker, each, "e") for each in claims]
        await bench.commit(worker, settle(claims[1], effects[1], FAILED), settle(claims[2], effects[2]))
        await bench.commit(worker, settle(claims[3], effects[3]), intend(claims[3], effects[3], "e", undo=True))
        await bench.commit(worker, settle(claims[3], effects[3], UNDONE))

        wrong: list[Change] = [
            intend(claims[0], effects[0], "e", undo=True, attempt=5),
            intend(claims[1], effects[1], "e", undo=True, attempt=5),
            settle(claims[2], effects[2], UNDONE),
            intend(claims[3], effects[3], "e", undo=True, attempt=5),
        ]
        outcome = await bench.store.commit(worker, wrong)

        assert outcome.refused.keys() == {each.run for each in claims}
        assert [row.state for row in await bench.store.get_effects(effects)] == [INTENDED, FAILED, DONE, UNDONE]

    @scenario
    async def test_the_undo_of_a_run_that_is_to_be_cancelled_knows_so(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await bench.done(worker, claimed, "e")
        await bench.cancel(claimed.run)
        told = CommitOutcome(cancelled=frozenset({claimed.run}))

        decided: list[Change] = [undo(claimed, RunState.CANCELLED), intend(claimed, effect, "e", undo=True)]
        assert await bench.store.commit(worker, decided) == told
        assert ((await bench.effect(effect)).state, (await bench.run(claimed.run)).undoing) == (DONE, True)

        knowing = intend(claimed, effect, "e", undo=True, cancelled=True)
        assert await bench.store.commit(worker, [knowing]) == told
        assert (await bench.effect(effect)).state is UNDOING

    @scenario
    async def test_a_person_says_that_what_could_not_be_undone_was_undone(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        effect = await self._given_up(bench, worker, claimed)
        await bench.commit(worker, hold(claimed))

        row = await bench.store.resolve(found_out(effect, UNDONE, b"other", by="ann", note="by hand"))

        assert row == await bench.effect(effect) and row is not None
        assert (row.state, row.outcome, row.by, row.note) == (UNDONE, b"receipt", "ann", "by hand")
        event = (await bench.store.effect_events(effect))[-1]
        assert (event.state, event.attempt, event.worker, event.fence) == (UNDONE, 1, None, None)
        assert (event.rev, event.by, event.note) == (row.rev, "ann", "by hand")
        assert await bench.store.resolve(found_out(effect, UNDONE)) == row

    # -- cancelling what is held -----------------------------------------------------------------------------

    @scenario
    async def test_a_held_run_with_effects_to_undo_is_sent_on_to_be_cancelled(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.done(worker, first, "e")
        await bench.commit(worker, again(first, 2), hold(first))
        second = await bench.start("t")
        await bench.store.set_idle(worker, True)
        async with hints(bench.store) as hinted:
            row = await bench.cancel(first.run, "enough 🦉", b"\0why")

            await hinted(Hint.WORK)

        assert row == await bench.run(first.run)
        assert (row.state, row.ready, row.worker, row.ended_at) == (RunState.QUEUED, True, None, None)
        assert (row.cancel, row.reason, row.detail, row.strikes) == ("enough 🦉", None, None, 0)
        assert row.undoing and (await bench.thread("t")).head == first.run
        claimed = await bench.claim_one(worker)
        assert (claimed.run, claimed.cancel) == (first.run, "enough 🦉")
        assert claimed.undoing == Decision(RunState.CANCELLED, b"\0why")
        assert await bench.ledger(run=first.run, state=DONE, undoable=True) == [effect]
        await bench.store.commit(worker, [cancelled(claimed)])
        assert (await bench.claim_one(worker)).run == second

    @scenario
    async def test_a_poisoned_run_that_is_cancelled_starts_with_no_strikes(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await bench.done(worker, claimed, "e")
        await bench.commit(worker, again(claimed, 2), requeue(claimed))
        dead = await bench.worker()
        await bench.claim_one(dead)
        assert await bench.die(dead, recoveries_max=1) == ((), (claimed.run,))

        row = await bench.cancel(claimed.run)

        assert (row.state, row.strikes, row.recoveries, row.reason) == (RunState.QUEUED, 0, 1, None)

    @scenario
    async def test_a_held_run_with_nothing_to_undo_is_cancelled_at_once(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(3)
        claims = await bench.claim(worker)
        await bench.done(worker, claims[0], "e", undoable=False)
        open_ = await bench.intended(worker, claims[1], "e")
        await self._undone(bench, worker, claims[2])
        await bench.commit(worker, *(hold(each) for each in claims))

        for claimed in claims:
            assert (await bench.cancel(claimed.run)).state is RunState.CANCELLED

        assert (await bench.effect(open_)).state is UNKNOWN

    @scenario
    async def test_a_run_that_was_held_while_it_is_undone_ends_as_was_decided(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        await bench.done(worker, first, "e")
        await bench.commit(worker, undo(first, RunState.FAILED, b"first"), hold(first))

        await bench.cancel(first.run, payload=b"second")

        assert (await bench.claim_one(worker)).undoing == Decision(RunState.FAILED, b"first")

    @scenario
    async def test_a_held_run_is_sent_on_to_be_undone_however_it_is_cancelled(self, bench: Bench) -> None:
        worker, above = await bench.begin("above")
        child = await bench.start("child", parent=parent(above, worker))
        below = await bench.claim_one(worker)
        assert below.run == child
        displaced = [(await bench.begin(kind.value, agent=kind.value)) for kind in (IfBusy.INTERRUPT, IfBusy.ROLLBACK)]
        held = [(worker, below), *displaced]
        for each, claimed in held:
            await bench.done(each, claimed, "e")
            await bench.commit(each, hold(claimed))

        await bench.cancel(above.run, payload=b"why")
        for kind in (IfBusy.INTERRUPT, IfBusy.ROLLBACK):
            await bench.start(kind.value, agent=kind.value, if_busy=kind, displaced=b"why")

        rows = await bench.store.get_runs([claimed.run for _, claimed in held])
        assert [(row.state, row.undoing, row.rollback) for row in rows] == [
            (RunState.QUEUED, True, False),
            (RunState.QUEUED, True, False),
            (RunState.QUEUED, True, True),
        ]
        agents = ("agent", IfBusy.INTERRUPT.value, IfBusy.ROLLBACK.value)
        claims = {each.run: each for each in await bench.claim(await bench.worker(), agents=agents)}
        assert claims.keys() == {row.id for row in rows}
        assert {each.undoing for each in claims.values()} == {Decision(RunState.CANCELLED, b"why")}

    # -- sending on ------------------------------------------------------------------------------------------

    @scenario
    async def test_a_run_of_which_something_was_undone_does_not_go_on(self, bench: Bench) -> None:
        worker, claimed = await bench.begin("t")
        await self._undone(bench, worker, claimed)
        await bench.commit(worker, fail(claimed))
        before = await bench.run(claimed.run)

        assert await bench.store.retry(claimed.run, []) == before == await bench.run(claimed.run)

        assert await bench.claim(worker) == []
        assert [row.kind for row in await bench.log(claimed.run)][-1] is Kind.ENDED

    @scenario
    async def test_a_run_with_nothing_to_undo_is_not_sent_on_to_undo(self, bench: Bench) -> None:
        worker = await bench.worker()
        await bench.start_many(4)
        claims = await bench.claim(worker)
        await bench.done(worker, claims[1], "e", undoable=False)
        await self._undone(bench, worker, claims[2])
        await bench.done(worker, claims[3], "e")
        await bench.commit(worker, *(fail(each) for each in claims[:3]), hold(claims[3]))

        for claimed in claims:
            before = await bench.run(claimed.run)
            assert await bench.store.retry(claimed.run, [], undo=True) == before == await bench.run(claimed.run)

        assert await bench.store.retry(10**15, [], undo=True) is None
        assert await bench.claim(worker) == []

    @scenario
    async def test_a_failed_run_is_sent_on_to_undo_what_is_left(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        given_up = await self._given_up(bench, worker, first)
        before = await bench.effect(given_up)
        await bench.commit(worker, fail(first, b"\0why"))

        row = await bench.store.retry(first.run, [], undo=True)

        assert row == await bench.run(first.run) and row is not None
        assert (row.state, row.undoing, row.strikes, row.ended_at) == (RunState.QUEUED, True, 0, None)
        assert await bench.store.outcomes([first.run]) == []
        found = await bench.effect(given_up)
        assert (found.state, found.undo_attempt, found.outcome) == (UNDO_FAILED, 0, before.outcome)
        second = await bench.claim_one(worker)
        assert second.undoing == Decision(RunState.FAILED, b"\0why")
        await bench.commit(worker, intend(second, given_up, "e", 1, undo=True))
        await bench.commit(worker, settle(second, given_up, UNDONE), fail(second, b"\0why"))
        assert (await bench.effect(given_up)).state is UNDONE
        assert await bench.state(first.run) is RunState.FAILED

    @scenario
    async def test_a_cancelled_run_that_is_sent_on_to_undo_stays_one_to_be_cancelled(self, bench: Bench) -> None:
        worker, first = await bench.begin("t", deadline_us=60_000_000)
        await self._given_up(bench, worker, first)
        await bench.cancel(first.run, "enough")
        await bench.store.commit(worker, [cancelled(first, b"\0why")])

        row = await bench.store.retry(first.run, [], undo=True)

        assert row is not None
        assert (row.state, row.cancel, row.reason, row.deadline_at) == (RunState.QUEUED, "enough", None, None)
        second = await bench.claim_one(worker)
        assert (second.cancel, second.undoing) == ("enough", Decision(RunState.CANCELLED, b"\0why"))
        outcome = await bench.store.commit(worker, [end(second)])
        assert outcome == CommitOutcome(cancelled=frozenset({first.run}))

    @scenario
    async def test_what_turned_out_to_have_happened_can_be_undone_after_the_end(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.intended(worker, first, "e")
        await bench.commit(worker, fail(first))
        unchanged = await bench.store.retry(first.run, [], undo=True)
        assert unchanged == await bench.run(first.run) and unchanged.state is RunState.FAILED

        await bench.store.resolve(found_out(effect, DONE, b"receipt"))
        await bench.store.retry(first.run, [], undo=True)

        second = await bench.claim_one(worker)
        assert second.undoing == Decision(RunState.FAILED, b"error")
        assert [(row.id, row.state) for row in second.effects] == [(effect, DONE)]

    @scenario
    async def test_a_run_is_sent_on_to_undo_whatever_became_of_its_thread(self, bench: Bench) -> None:
        """It changes no state."""
        worker, first = await bench.begin("t")
        await self._given_up(bench, worker, first)
        await bench.commit(worker, again(first, 2, state=b"first"), fail(first, super_step=3))
        await bench.start("t")
        later = await bench.claim_one(worker)
        await bench.commit(worker, again(later, 2, state=b"later"))

        row = await bench.store.retry(first.run, [], undo=True)

        assert row is not None and (row.state, row.ready) == (RunState.QUEUED, False)
        await bench.commit(worker, end(later, super_step=3))
        assert (await bench.claim_one(worker)).run == first.run
        assert (await bench.thread("t")).snapshot_run == later.run

    @scenario
    async def test_a_run_is_sent_on_with_its_work_after_effects_that_stand(self, bench: Bench) -> None:
        worker, first = await bench.begin("t")
        effect = await bench.done(worker, first, "e")
        await bench.commit(worker, fail(first))

        row = await bench.store.retry(first.run, [])

        assert row is not None and (row.state, row.undoing) == (RunState.QUEUED, False)
        second = await bench.claim_one(worker)
        assert [(each.id, each.state) for each in second.effects] == [(effect, DONE)]
        assert [record.key for record in second.records] == ["e"] and second.undoing is None

    # -- helpers ---------------------------------------------------------------------------------------------

    async def _undone(self, bench: Bench, worker: int, claimed: Claimed) -> int:
        """An effect of this claim that was undone."""
        return await self._undo(bench, worker, claimed, UNDONE)

    async def _given_up(self, bench: Bench, worker: int, claimed: Claimed) -> int:
        """An effect of this claim that could not be undone."""
        return await self._undo(bench, worker, claimed, UNDO_FAILED)

    async def _undo(self, bench: Bench, worker: int, claimed: Claimed, state: EffectState) -> int:
        effect = await bench.done(worker, claimed, "e")
        await bench.commit(worker, undo(claimed), intend(claimed, effect, "e", undo=True))
        await bench.commit(worker, settle(claimed, effect, state))
        return effect
