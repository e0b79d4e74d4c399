"""Dispatching an effect: its intent, its body, its outcome; and finding out, where nobody knows it.

The intent is on disk before the body begins, under the fence that this worker holds; from there on the effect is never
assumed not to have happened. A body in flight is seen to its end, also where the code around it is cancelled: a request
that is broken off is one whose outcome nobody knows. What its error says is decided in `core/happenings.py`.

An effect whose outcome is unknown is dispatched again, verified, asked about or given up, as it declares. Tries are
counted across crashes, by the ledger and the tries beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure.core.answers import payload_digest, schema_bytes
from perdure.core.changes import CommitOutcome, IntendEffect, NewInterrupt, SettleEffect
from perdure.core.codec import codec_for
from perdure.core.display import divergence_of_effect
from perdure.core.effects import INTENDABLE, EffectState, effect_id
from perdure.core.endings import Held
from perdure.core.errors import printable
from perdure.core.failures import encode_error, error_info, failure
from perdure.core.happenings import Happening, what_happened
from perdure.core.keys import ask_place
from perdure.core.limits import VERIFY_ATTEMPTS
from perdure.core.records import HeldReason, InterruptState, WaitKind, run_id, worker_id
from perdure.core.retry import Retry, RetryIn, Stop, backoff_s, decide
from perdure.core.snapshot import spill
from perdure.core.verdicts import ANSWER_SCHEMA, DidNotHappen, GiveUp, Happened, StillUnknown, verdict_of
from perdure.errors import NotSerializable, OutcomeUnknown, UsageError
from perdure.runtime.callables import invoke, place_of
from perdure.runtime.frames import StepFrame, frame, outside
from perdure.runtime.stepping import pause, record_attempt, run_body, settle
from perdure.runtime.strays import see
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.core.effects import Effect as Row
    from perdure.runtime.effect import Effect
    from perdure.runtime.superstep import SuperStep

VERIFY: Retry = Retry(attempts=VERIFY_ATTEMPTS, delay_s=1.0, max_delay_s=60.0)
"""How a provider is asked."""

NOTE_CHARS: Final = 2_000
"""Of what an error says, in the ledger."""

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
            self.at.submit(self._settled(EffectState.UNKNOWN, None, note=self.why))
            await self._count(self._error())
        elif self.unknown:
            self.why = row.note or self.why
        return None

    def _hold(self, detail: str) -> None:
        self.at.close(Held(HeldReason.DIVERGED, detail))
        self.at.check()

    # -- a try ----------------------------------------------------------------------------------------------------

    async def _dispatch(self) -> Outcome | None:
        """One try: its outcome, or None where it is to be tried again or found out."""
        at = self.at
        await at.admit()
        at.in_flight += 1
        sent = True
        try:
            found = await self._try()
        except _NotSent:
            sent, found = False, None
        finally:
            at.body_ended()
        if not sent:  # its run is cancelled, or the code around it: which is delivered here
            await at.fresh()
            await asyncio.get_running_loop().create_future()
        if not isinstance(found, RetryIn):
            return found
        await pause(at, self.key, self.tries, found.delay_s)
        return None

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
        batch = at.submit(change)
        await at.kept(batch)
        outcome: CommitOutcome = batch.done.result()
        return knows or claimed.run not in outcome.cancelled

    async def _try(self) -> Outcome | RetryIn | None:
        """The body, and what became of it."""
        at = self.at
        put_off: list[tuple[Any, ...]] = []
        with outside():
            body = asyncio.get_running_loop().create_task(self._body(put_off), name=f"effect {self.key}")
        try:
            await seen_to_its_end(at, body, put_off)
            payload, value = body.result()
        except asyncio.CancelledError:
            at.check()
            raise
        except _NotSent:
            raise
        except _UnrecordableError as unrecordable:
            at.check()
            note = "it was done, and what it returned cannot be recorded"
            return await self._raise(EffectState.UNKNOWN, unrecordable.error, note=note)
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
            self.at.submit(self._settled(EffectState.ABSENT, None, note="it was cancelled before it was dispatched"))
            raise _NotSent
        args, kwargs = self.effect.signature.decode(self.arguments)
        here = StepFrame(self.at, self.effect.settings.name, self.key, self.attempt, self.idempotency_key)
        value = await run_body(self.effect, here, args, kwargs)
        try:
            return self.effect.codec.roundtrip(value)
        except Exception as error:  # the edge of user code: what its type makes of the value
            raise _UnrecordableError(error) from error

    async def _done(self, payload: bytes, value: Any, *, note: str | None = None, by: str | None = None) -> Outcome:
        """It happened: its record."""
        outcome, blobs = spill(payload)
        record = self.at.record(
            self.key, self.digest, self.attempt, payload, failed=False, started_at=self.started_at
        )  # fmt: skip
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
            self.why = _said(error)
            again = backoff_s(self.effect.settings.retry, self.tries)
            self.pause_s = decision.delay_s if isinstance(decision, RetryIn) else again
            self.at.submit(self._settled(EffectState.UNKNOWN, None, note=self.why))
            await self._count(error, self.pause_s)
            return None
        if isinstance(decision, Stop):
            await self._refused(error)
        assert isinstance(decision, RetryIn)
        self.at.submit(self._settled(EffectState.ABSENT, None, note=_said(error)))
        await self._count(error, decision.delay_s)
        return decision

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
        record = at.record(self.key, self.digest, self.attempt, payload, failed=True, started_at=self.started_at)
        outcome, blobs = spill(payload)
        batch = at.submit(self._settled(state, outcome, note=note, record=record, blobs=blobs))
        if at.durability == "sync":
            await at.kept(batch)
        raised = failure(payload, run=at.claimed.run, key=self.key, attempts=self.attempt)
        emit("effect.failed", run=run_id(at.claimed.run), effect=effect_id(self.id), key=self.key, error=str(raised))
        raise raised

    # -- finding out ----------------------------------------------------------------------------------------------

    async def _find_out(self) -> Outcome | None:
        """What is done where nobody knows: its outcome, or None where it is to be dispatched again."""
        plan, why = self.effect.plan, self.why
        emit("effect.unknown", run=run_id(self.at.claimed.run), effect=effect_id(self.id), key=self.key, why=why)
        if plan.verify is not None:
            verdict = await self._verified()
            if isinstance(verdict, Happened):
                return await self._happened(verdict.result, note="its provider was asked")
            if isinstance(verdict, DidNotHappen):
                return await self._absent("its provider says so", None)
            why = f"{why}; its provider was asked and cannot tell ({verdict.why})"
        if plan.on_unknown == "retry" and self.tries < self.effect.settings.retry.attempts:
            await pause(self.at, self.key, self.tries, self.pause_s)
            return None
        if plan.on_unknown == "ask":
            return await self._ask(why)
        return await self._give_up(why)

    async def _outlive(self, row: Row) -> None:
        """Where somebody is to be asked, wait until the lease of the worker that intended it is over: one that was
        taken over early may dispatch it until then, and what is true before that does not stay true."""
        at, plan = self.at, self.effect.plan
        if plan.verify is not None or plan.on_unknown == "ask":
            elapsed_us = int((at.host.clock.monotonic() - at.claimed_s) * 1_000_000)
            left_us = row.lease_until - at.claimed.now - elapsed_us
            await pause(at, self.key + "?", self.attempt, max(0, left_us) / 1_000_000)

    async def _verified(self) -> Happened | DidNotHappen | StillUnknown:
        """Ask the provider, and again while it cannot tell."""
        at = self.at
        verdict: Happened | DidNotHappen | StillUnknown = StillUnknown()
        for asked in range(1, VERIFY_ATTEMPTS + 1):
            await at.admit()
            at.in_flight += 1
            try:
                verdict = await self._ask_provider(asked)
            except (Exception, SystemExit) as error:  # the edge of user code: who broke cannot tell
                at.check()
                verdict = StillUnknown(_said(error))
            finally:
                at.body_ended()
            if not isinstance(verdict, StillUnknown):
                break
            if asked < VERIFY_ATTEMPTS:
                await asyncio.sleep(backoff_s(VERIFY, asked))
        return verdict

    async def _ask_provider(self, asked: int) -> Happened | DidNotHappen | StillUnknown:
        effect, verify = self.effect, self.effect.plan.verify
        assert verify is not None
        args, kwargs = effect.signature.decode(self.arguments)
        bound = effect.signature.bind(args, kwargs)
        bound.apply_defaults()
        here = StepFrame(self.at, f"verify:{effect.settings.name}", self.key, asked, self.idempotency_key)
        call = (self.idempotency_key, dict(bound.arguments))
        verdict = await call_beside(here, verify, call, {}, timeout_s=effect.settings.timeout_s)
        if isinstance(verdict, Happened):
            effect.codec.roundtrip(verdict.result)  # what is none of its results tells nobody anything
        if isinstance(verdict, Happened | DidNotHappen | StillUnknown):
            return verdict
        raise UsageError(
            f"verify of effect {effect.settings.name!r} returned {verdict!r}; it returns perdure.Happened(result), "
            "perdure.DidNotHappen() or perdure.StillUnknown()"
        )

    async def _ask(self, why: str) -> Outcome | None:
        """Ask a person, parked until there is an answer."""
        at, claimed = self.at, self.at.claimed
        place = ask_place(self.key, self.attempt)
        payload = codec_for(Any).encode(self._shown(why))
        shown, blobs = spill(payload)
        question = NewInterrupt(
            await at.host.ids.take(1), f"effect:{self.effect.settings.name}", shown, schema_bytes(ANSWER_SCHEMA),
            payload_digest(payload), "raise", None,
        )  # fmt: skip
        while True:
            wait = await at.waiting.until(place, WaitKind.ANSWER, interrupt=question, blobs=blobs)
            assert wait.target is not None
            found = await at.host.reads.interrupts.one(wait.target)
            at.check()
            if found is None or found.state is not InterruptState.ANSWERED:
                continue
            assert found.answer is not None
            at.submit(at.waiting.close(place))
            try:
                verdict = verdict_of(await at.load(found.answer), self.effect.codec)
            except NotSerializable as error:
                return await self._give_up(f"{why}; the answer's result is not one of this effect: {error}")
            who = found.answered_by
            if isinstance(verdict, Happened):
                return await self._happened(verdict.result, note="a person says so", by=who)
            if isinstance(verdict, DidNotHappen):
                return await self._absent("a person says so", who)
            assert isinstance(verdict, GiveUp), claimed.run
            return await self._give_up(f"{why}; nobody can find out")

    def _shown(self, why: str) -> dict[str, Any]:
        """What is known, for whoever is asked."""
        return {
            "question": "Did this effect happen?",
            "effect": effect_id(self.id),
            "name": self.effect.settings.name,
            "idempotency_key": self.idempotency_key,
            "tried": self.attempt,
            "why": why,
            "answer": 'one of {"happened": true, "result": ...}, {"happened": false}, {"happened": null}',
        }

    async def _happened(self, result: Any, *, note: str, by: str | None = None) -> Outcome:
        payload, value = self.effect.codec.roundtrip(result)
        return await self._done(payload, value, note=note, by=by)

    async def _absent(self, note: str, by: str | None) -> Outcome | None:
        """It is known that it did not happen: it is dispatched, unless it has been as often as it may."""
        self.unknown = False
        if by is None and self.tries >= self.effect.settings.retry.attempts:
            await self._refused(OutcomeUnknown(f"effect {self.key!r} was tried {self.tries} times, and did not happen"))
        self.at.submit(self._settled(EffectState.ABSENT, None, note=note, by=by))
        return None

    # -- small things ---------------------------------------------------------------------------------------------

    async def _count(self, error: Exception, retry_in_s: float = 0.0) -> None:
        """Have this try counted, in the commit that settles it: it did not become the effect's record."""
        recorded = encode_error(error_info(error, retry_in_s=retry_in_s))
        await record_attempt(self.at, self.key, self.tries, recorded, self.started_at)

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
        super().__init__(str(error))
        self.error = error


def _said(error: BaseException) -> str:
    """What an error says, as the ledger keeps it."""
    return printable(f"{type(error).__name__}: {error}", NOTE_CHARS)


async def call_beside(
    here: StepFrame, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, timeout_s: float | None
) -> Any:
    """Call what an effect has beside its body, its `verify` or its `undo`, in a frame and under the effect's limit."""
    at = here.super_step
    token = frame.set(here)
    try:
        with at.host.deadlines.within(timeout_s):
            return await invoke(fn, place_of(fn, None), at.pools, args, kwargs)
    finally:
        frame.reset(token)


async def seen_to_its_end(at: SuperStep, body: asyncio.Task[Any], put_off: list[tuple[Any, ...]]) -> None:
    """Wait until a body has ended, whoever cancels the waiting; that is `put_off`, and made up for afterwards, at the
    next await. Only where the super-step is over is the body cancelled, too."""
    while not body.done():
        try:
            await asyncio.wait([body])
        except asyncio.CancelledError as cancelled:
            if at.ending is not None:
                body.cancel()
                body.add_done_callback(see)
                raise
            put_off.append(cancelled.args)
    task = asyncio.current_task()
    assert task is not None
    for words in put_off:
        task.uncancel()
        task.cancel(*words)


def idempotency_key(random: Random) -> str:
    """A key that no other effect has: 128 random bits, on disk before they are used."""
    return f"pd-{random.getrandbits(128):032x}"
