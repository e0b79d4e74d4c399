"""Dispatching an effect: its intent, its body, its outcome; and what is done where nobody knows it.

The intent is on disk before the body begins, under the fence that this worker holds; from there on the effect is never
assumed not to have happened. A body in flight is seen to its end, also where the code around it is cancelled, or where
its super-step has ended (a sibling has failed, say): a request that is broken off is one whose outcome nobody knows.
What its error says is decided in `core/happenings.py`.

An effect whose outcome is unknown is dispatched again, asked about (`inquiry.py`) or given up, as it declares. Tries
are counted across crashes, by the ledger and the tries beside it.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure.core.changes import (
    AppendCheckpoint,
    Change,
    CommitOutcome,
    IntendEffect,
    SettleEffect,
)
from perdure.core.display import divergence_of_effect
from perdure.core.effects import INTENDABLE, EffectState, effect_id
from perdure.core.endings import Held
from perdure.core.errors import printable, text_of
from perdure.core.failures import encode_error, error_info, failure
from perdure.core.happenings import Happening, what_happened
from perdure.core.records import HeldReason, run_id, worker_id
from perdure.core.retry import RetryIn, Stop, backoff_s, decide
from perdure.core.snapshot import spill
from perdure.core.verdicts import DidNotHappen, GiveUp, Happened
from perdure.errors import NotSerializable, OutcomeUnknown
from perdure.runtime.budgeting import NoBudgetError, reserve
from perdure.runtime.callables import CUT_SHORT
from perdure.runtime.frames import StepFrame, outside
from perdure.runtime.group import Batch
from perdure.runtime.inquiry import NOTE_CHARS, ask_a_person, ask_provider, said
from perdure.runtime.metering import NO_USE, Use, file_cut_off, use_of
from perdure.runtime.pausing import pause
from perdure.runtime.stepping import admitted, attempt_of, record_attempt, run_body, settle
from perdure.runtime.strays import make_up_for, seen_to_its_end
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.core.effects import Effect as Row
    from perdure.core.meters import Meter
    from perdure.runtime.effect import Effect
    from perdure.runtime.superstep import SuperStep

UNRECORDABLE: Final = "it was done, and what it returned cannot be recorded"

CANNOT_TELL: Final = "; its provider was asked and cannot tell ("
"""In an unknown effect's note, between why it is unknown and what its `verify` has said, or raised."""

Outcome = tuple[Any]
"""The value that an effect has in the agent. (Its failure is raised.)"""


class Dispatch:
    """One call of an effect that has no record yet."""

    def __init__(
        self, at: SuperStep, effect: Effect[..., Any], key: str, digest: int, args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:  # fmt: skip
        self.at = at
        self.effect = effect
        self.key = key
        self.digest = digest
        self.arguments = effect.signature.bind_encode(args, kwargs)
        """As the ledger keeps them. Every try gets them from here: what was passed may change meanwhile."""
        self.row = at.effects.get(key)
        self.id = 0 if self.row is None else self.row.id
        self.attempt = 0 if self.row is None else self.row.attempt
        self.idempotency_key = "" if self.row is None else self.row.idempotency_key
        self.unknown = self.row is not None and self.row.state in (EffectState.INTENDED, EffectState.UNKNOWN)
        """Whether a try of it may have happened."""
        self.why = "it was dispatched, and no outcome is on record"
        self.pause_s = 0.0
        """Before it is dispatched again."""
        self.started_at = at.host.clock.wall_us()
        self._intent: Batch[Change, CommitOutcome] | None = None
        """What puts this try's intent on disk, once that is asked for."""
        self._knows = False
        """Whether it was asked for by code that knows of its cancellation."""
        self._begun = False
        """Whether this try's body has."""
        self.meters: list[Meter] = []
        """What the try has used."""
        self.tried_at, self.tried_s = self.started_at, at.host.clock.monotonic()
        self.counted = self.attempt
        """The last try of which it is on record what it has used."""
        last = at.journal.last_try(key)
        self.tries = 0 if last is None else last.attempt
        """Tries that its policy counts: those since the last failure that was on record."""

    async def outcome(self) -> Any:
        """See it to its outcome: its value, or its failure, raised."""
        if self.row is not None:
            if (found := await self._as_found(self.row)) is not None:
                return found[0]
        while True:
            if not self.unknown or (found := await self._find_out()) is None:
                found = await self._dispatch()
            if found is not None:
                return found[0]

    # -- what the ledger says -------------------------------------------------------------------------------------

    async def _as_found(self, row: Row) -> Outcome | None:
        """What was known of it before: it is done (a person has found out), or unknown, or it may be tried."""
        if not (self.effect.settings.ignore_args or row.digest == self.digest):
            self._hold(divergence_of_effect(self.key, effect_id(row.id), row.arguments, self.arguments))
        if row.state is EffectState.DONE:
            assert row.outcome is not None, f"{effect_id(row.id)} is done, and has no result"
            payload = await self.at.load(row.outcome)
            value = self._decoded(payload)
            batch = self.at.append(
                self.key, self.digest, self.attempt, payload, failed=False, started_at=self.started_at
            )
            await settle(self.at, self.effect, batch)
            return (value,)
        if row.state not in INTENDABLE:
            self._hold(f"{effect_id(row.id)} ({self.key!r}) was undone, and the code wants its result; start a new run")
        if self.unknown and (row.settled_at is None or row.settled_at <= row.intended_at):
            self.why = f"its worker {worker_id(row.worker)} died, or lost its lease, while it was in flight"
            await self._outlive(row)
            self.tries += 1  # once: whoever comes next, should this worker die as well, finds that it is counted
            self._note_unknown()
            await self._count(self._error())
        elif self.unknown:
            self.why = (row.note or self.why).partition(CANNOT_TELL)[0]  # it is asked again
        return None

    def _hold(self, detail: str) -> None:
        self.at.close(Held(HeldReason.DIVERGED, detail))
        self.at.check()

    # -- a try ----------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> Outcome | None:
        """One try: its outcome, or None where it is to be tried again or found out."""
        at = self.at
        here = StepFrame(at, self.effect.settings.name, self.key, self.attempt + 1)
        if at.claimed.budgets:
            await self._reserve(here)
        await admitted(here)
        at.in_flight += 1
        sent = True
        put_off: list[tuple[Any, ...]] = []
        try:
            found = await self._try(put_off)
        except _NotSent:
            sent, found = False, None
        finally:
            at.body_ended()
            if sent and at.ending is None:
                make_up_for(at, put_off)
        if not sent:  # its run is cancelled, or the code around it: which is delivered here
            if at.ending is None:
                file_cut_off(here, at.host.clock.wall_us(), began=False)
            make_up_for(at, put_off)
            await at.fresh()
            await asyncio.get_running_loop().create_future()
        if not isinstance(found, RetryIn):
            return found
        await pause(at, self.key, self.tries, found.delay_s)
        return None

    async def _reserve(self, here: StepFrame) -> None:
        """Reserve what a try may cost. Where nobody raises what it counts against, the effect has failed; the ledger
        keeps what it knows of earlier tries."""
        try:
            await reserve(here, self.effect.settings.estimate)
        except NoBudgetError as refused:
            if self.unknown:  # an earlier try may have happened: that is what the agent has to know
                await self._give_up(f"{self.why}; it is not tried again: {refused.error}")
            error = encode_error(error_info(refused.error))
            attempt = max(1, self.attempt)
            self.at.append(self.key, self.digest, attempt, error, failed=True, started_at=self.started_at)
            raise failure(error, run=self.at.claimed.run, key=self.key, attempts=attempt) from None

    async def _intend(self) -> bool:
        """Put on disk that it is about to be dispatched; False where the run was cancelled first."""
        at, claimed = self.at, self.at.claimed
        if not self.id:
            self.id = await at.host.ids.take(1)
            self.idempotency_key = idempotency_key(at.host.random)
        self.attempt += 1
        self.tries += 1
        arguments, blobs = spill(self.arguments)
        knows = at.knows_of_cancellation
        plan = self.effect.plan
        change = IntendEffect(
            claimed.run, claimed.fence, claimed.thread, at.number, self.key, self.id, self.effect.settings.name,
            plan.code, self.idempotency_key, plan.policy, plan.undo is not None, self.attempt, self.digest, arguments,
            blobs, cancelled=knows,
        )  # fmt: skip
        self._intent = at.submit(change)
        self._knows = knows
        await at.kept(self._intent)
        return self._is_intended

    @property
    def _is_intended(self) -> bool:
        """Whether the intent is on disk."""
        if self._intent is None or not self._intent.done.done():
            return False
        outcome, run = self._intent.done.result(), self.at.claimed.run
        return (self._knows or run not in outcome.cancelled) and run not in (*outcome.lost, *outcome.refused)

    async def _try(self, put_off: list[tuple[Any, ...]]) -> Outcome | RetryIn | None:
        """The body, and what became of it."""
        at = self.at
        self._intent, self._begun = None, False
        with outside():
            body = asyncio.get_running_loop().create_task(self._body(put_off), name=f"effect {self.key}")
        at.bodies.begin(body, limited=self.effect.settings.timeout_s is not None)
        try:
            try:
                await seen_to_its_end(at, body, put_off)
            finally:
                if at.ending is not None:
                    self._see_out(body)
            payload, value = body.result()
        except asyncio.CancelledError:  # by itself: who cancels the code around it is put off
            at.check()
            return await self._failed(ConnectionAbortedError(CUT_SHORT))
        except _NotSent:
            raise
        except _UnrecordableError as unrecordable:
            at.check()
            return await self._raise(EffectState.UNKNOWN, unrecordable.error, note=UNRECORDABLE)
        except Exception as error:  # the edge of user code: what it says is recorded
            at.check()
            return await self._failed(error)
        return await self._done(payload, value)

    async def _body(self, put_off: list[tuple[Any, ...]]) -> tuple[bytes, Any]:
        """The intent and the body, in a task that nobody cancels who cancels the code around it."""
        if not await self._intend():
            raise _NotSent
        await self.at.trusted()
        self.at.check()
        if put_off:  # cancelled before it began: it will not
            self.at.submit(self._not_begun())
            raise _NotSent
        args, kwargs = self.effect.signature.decode(self.arguments)
        settings = self.effect.settings
        self.meters = []
        here = StepFrame(self.at, settings.name, self.key, self.attempt, self.idempotency_key, self.meters)
        self.tried_at, self.tried_s = self.at.host.clock.wall_us(), here.began_s
        self._begun = True
        self.at.dispatched.add(self.key)
        value = await run_body(self.effect, here, args, kwargs)
        try:
            return self.effect.codec.roundtrip(value)
        except Exception as error:  # the edge of user code: what its type makes of the value
            raise _UnrecordableError(error) from error

    def _see_out(self, body: asyncio.Task[tuple[bytes, Any]]) -> None:
        """The super-step has ended: what becomes of this try is filed all the same, and nothing is tried again."""
        if body.done():
            self._file_late(body)
        else:
            body.add_done_callback(self._file_late)

    def _file_late(self, body: asyncio.Task[tuple[bytes, Any]]) -> None:
        at = self.at
        error = None if body.cancelled() else body.exception()
        if body.cancelled() or isinstance(error, _NotSent):
            self._file_cut_off()
        elif not self._begun:
            self._file_cut_off()
            if self._is_intended:
                at.submit_late(self._not_begun())
        elif error is None:
            payload, _ = body.result()
            outcome, blobs = spill(payload)
            record = self._record(payload)
            at.submit_late(self._settled(EffectState.DONE, outcome, note=None, record=record, blobs=blobs))
        elif isinstance(error, Exception):
            unrecordable = isinstance(error, _UnrecordableError)
            unknown = self.unknown or unrecordable or what_happened(error) is Happening.UNKNOWN
            state = EffectState.UNKNOWN if unknown else EffectState.ABSENT
            at.submit_late(self._settled(state, None, note=UNRECORDABLE if unrecordable else said(error)))
            at.submit_late(attempt_of(at, self.key, self.tries, _recorded(error), self.started_at, self._use()))
        else:
            self._file_cut_off()

    def _file_cut_off(self) -> None:
        """File what a try has used of which no outcome will be filed here."""
        meters = self.meters if self._begun else []
        here = StepFrame(self.at, self.effect.settings.name, self.key, self.attempt, None, meters)
        here.began_s = self.tried_s
        file_cut_off(here, self.tried_at, began=self._begun)

    def _not_begun(self) -> SettleEffect:
        """This try will not happen; of one before it that says nothing."""
        if self.unknown:
            return self._settled(EffectState.UNKNOWN, None, note=self.why)
        return self._settled(EffectState.ABSENT, None, note="it was cancelled before it was dispatched")

    def _record(self, payload: bytes, *, failed: bool = False) -> AppendCheckpoint:
        return self.at.record(
            self.key, self.digest, self.attempt, payload, failed=failed, started_at=self.started_at, use=self._use()
        )  # fmt: skip

    async def _done(self, payload: bytes, value: Any, *, note: str | None = None, by: str | None = None) -> Outcome:
        """It happened: its record."""
        outcome, blobs = spill(payload)
        record = self._record(payload)
        batch = self.at.submit(self._settled(EffectState.DONE, outcome, note=note, by=by, record=record, blobs=blobs))
        await settle(self.at, self.effect, batch)
        return (value,)

    async def _failed(self, error: Exception) -> Outcome | RetryIn | None:
        """The try raised: it did not happen, or nobody knows."""
        host = self.at.host
        happening = what_happened(error)
        decision = decide(
            self.effect.settings.retry, attempt=self.tries, error=error, random=host.random.random(),
            now_us=host.clock.wall_us(),
        )  # fmt: skip
        if happening is Happening.UNKNOWN or self.unknown:  # what became of this try says nothing of the one before
            self.unknown = True
            self.why = said(error)
            again = backoff_s(self.effect.settings.retry, self.tries)
            self.pause_s = decision.delay_s if isinstance(decision, RetryIn) else again
            self._note_unknown()
            await self._count(error, self.pause_s)
            return None
        if isinstance(decision, Stop):
            await self._refused(error)
        assert isinstance(decision, RetryIn)
        self.at.submit(self._settled(EffectState.ABSENT, None, note=said(error)))
        await self._count(error, decision.delay_s)
        return decision

    def _note_unknown(self) -> None:
        """Nobody knows what became of this try: for the ledger and for the log."""
        self.at.submit(self._settled(EffectState.UNKNOWN, None, note=self.why))
        emit("effect.unknown", run=run_id(self.at.claimed.run), effect=effect_id(self.id), key=self.key, why=self.why)

    async def _refused(self, error: Exception) -> None:
        """It did not happen, and will not: its record, raised."""
        await self._raise(EffectState.FAILED, error, note=None)

    async def _give_up(self, why: str) -> Outcome:
        """Nobody knows, and nobody will: its record, raised; the ledger keeps it as unknown."""
        self.why = why
        await self._raise(EffectState.UNKNOWN, self._error(), note=printable(why, NOTE_CHARS))

    async def _raise(self, state: EffectState, error: Exception, *, note: str | None) -> NoReturn:
        at = self.at
        payload = encode_error(error_info(error))
        record = self._record(payload, failed=True)
        outcome, blobs = spill(payload)
        batch = at.submit(self._settled(state, outcome, note=note, record=record, blobs=blobs))
        await settle(at, self.effect, batch)
        raised = failure(payload, run=at.claimed.run, key=self.key, attempts=self.attempt)
        emit("effect.failed", run=run_id(at.claimed.run), effect=effect_id(self.id), key=self.key, error=str(raised))
        raise raised

    # -- finding out ----------------------------------------------------------------------------------------------

    async def _find_out(self) -> Outcome | None:
        """What is done where nobody knows: its outcome, or None where it is to be dispatched again."""
        plan, why = self.effect.plan, self.why
        if plan.verify is not None:
            verdict = await ask_provider(self)
            if isinstance(verdict, Happened):
                return await self._happened(verdict.result, note="its provider was asked")
            if isinstance(verdict, DidNotHappen):
                return await self._absent("its provider says so", None)
            why += f"{CANNOT_TELL}{verdict.why})"
            self.at.submit(self._settled(EffectState.UNKNOWN, None, note=printable(why, NOTE_CHARS)))
        if plan.on_unknown == "retry" and self.tries < self.effect.settings.retry.attempts:
            await pause(self.at, self.key, self.tries, self.pause_s)
            return None
        if plan.on_unknown == "ask":
            return await self._asked(why)
        return await self._give_up(why)

    async def _asked(self, why: str) -> Outcome | None:
        """What a person says."""
        verdict, by = await ask_a_person(self, why)
        match verdict:
            case Happened(result):
                return await self._happened(result, note="a person says so", by=by)
            case DidNotHappen():
                return await self._absent("a person says so", by)
            case GiveUp(why_not):
                return await self._give_up(f"{why}; {why_not}")

    async def _outlive(self, row: Row) -> None:
        """Where somebody is to be asked, wait until the lease of the worker that intended it is over: one that was
        taken over early may dispatch it until then, and what is true before that does not stay true."""
        at, plan = self.at, self.effect.plan
        if plan.verify is not None or plan.on_unknown == "ask":
            elapsed_us = int((at.host.clock.monotonic() - at.claimed_s) * 1_000_000)
            left_us = row.lease_until - at.claimed.now - elapsed_us
            await pause(at, self.key + "?", self.attempt, max(0, left_us) / 1_000_000)

    async def _happened(self, result: Any, *, note: str, by: str | None = None) -> Outcome:
        payload, value = self.effect.codec.roundtrip(result)
        return await self._done(payload, value, note=note, by=by)

    async def _absent(self, note: str, by: str | None) -> Outcome | None:
        """It is known that it did not happen: it is dispatched, unless it has been as often as it may."""
        self.unknown = False
        if by is None and self.tries >= self.effect.settings.retry.attempts:
            await self._refused(
                ConnectionError(
                    f"it was tried {'once' if self.tries == 1 else f'{self.tries} times'}, as often as it may, and did "
                    f"not happen: {note}. The last time: {self.why}"
                )
            )
        self.at.submit(self._settled(EffectState.ABSENT, None, note=note, by=by))
        return None

    # -- small things ---------------------------------------------------------------------------------------------

    async def _count(self, error: Exception, retry_in_s: float = 0.0) -> None:
        """Have this try counted, in the commit that settles it: it did not become the effect's record."""
        recorded = _recorded(error, retry_in_s)
        await record_attempt(self.at, self.key, self.tries, recorded, self.started_at, self._use())

    def _use(self) -> Use:
        """What the try has used, for the change that says what came of it."""
        if self.counted == self.attempt:
            return NO_USE
        self.counted = self.attempt
        return use_of(self.at, self.meters, self.tried_s)

    def _settled(
        self, state: EffectState, outcome: bytes | None, *, note: str | None, by: str | None = None,
        record: Any = None, blobs: Any = (),
    ) -> SettleEffect:  # fmt: skip
        claimed = self.at.claimed
        return SettleEffect(
            claimed.run, claimed.fence, claimed.thread, self.id, self.attempt, state, outcome, note, by, record, blobs
        )

    def _error(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"nobody knows whether effect {effect_id(self.id)} happened: {self.why}. Find out at its provider (its key "
            f"there is {self.idempotency_key}), say so with `perdure effects resolve {effect_id(self.id)}`, and send "
            f"the run on with `perdure retry {run_id(self.at.claimed.run)}`",
            effect_id=effect_id(self.id), idempotency_key=self.idempotency_key,
        )  # fmt: skip

    def _decoded(self, payload: bytes) -> Any:
        try:
            return self.effect.codec.decode(payload)
        except NotSerializable as error:
            self.at.hold_unreadable(self.key, error)


class _NotSent(Exception):
    """It was not dispatched: its run, or the code around it, was cancelled first."""


class _UnrecordableError(Exception):
    """It was done, and what it returned cannot be recorded."""

    def __init__(self, error: Exception) -> None:
        super().__init__(text_of(error))
        self.error = error


def _recorded(error: Exception, retry_in_s: float = 0.0) -> bytes:
    """A try's error, as it is recorded."""
    return encode_error(error_info(error, retry_in_s=retry_in_s))


def idempotency_key(random: Random) -> str:
    """A key that no other effect has: 128 random bits, on disk before they are used."""
    return f"pd-{random.getrandbits(128):032x}"
