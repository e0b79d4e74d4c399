"""Finding out what became of an effect: its provider is asked, by its `verify`, or a person, in the inbox.

Who breaks while it is asked cannot tell. An answer that is none of the effect's results tells nobody anything; then the
same is asked again, as a question of its own beside the first, which says why.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from perdure.core.answers import payload_digest, schema_bytes
from perdure.core.changes import NewInterrupt
from perdure.core.codec import codec_for
from perdure.core.effects import effect_id
from perdure.core.errors import printable, text_of
from perdure.core.keys import ask_place
from perdure.core.limits import VERIFY_ATTEMPTS
from perdure.core.records import Interrupt, InterruptState, WaitKind, interrupt_id, run_id
from perdure.core.retry import Retry, backoff_s
from perdure.core.snapshot import spill
from perdure.core.verdicts import (
    ANSWER_SCHEMA,
    DidNotHappen,
    GiveUp,
    Happened,
    StillUnknown,
    Verdict,
    verdict_of,
)
from perdure.errors import NotSerializable, UsageError
from perdure.runtime.asking import ANSWERS_MAX
from perdure.runtime.callables import contained, cpu_of, invoke
from perdure.runtime.frames import BesideFrame, frame
from perdure.runtime.metering import file_beside
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.dispatching import Dispatch

VERIFY: Retry = Retry(attempts=VERIFY_ATTEMPTS, delay_s=1.0, max_delay_s=60.0)
"""How a provider is asked."""

NOTE_CHARS: Final = 2_000
"""Of what an error says, in the ledger."""


# -- its provider -----------------------------------------------------------------------------------------------------


async def ask_provider(dispatch: Dispatch) -> Verdict:
    """Ask the provider, and again while it cannot tell."""
    at = dispatch.at
    verdict: Verdict = StillUnknown()
    for asked in range(1, VERIFY_ATTEMPTS + 1):
        await at.admit()
        at.in_flight += 1
        try:
            verdict = await _verify(dispatch, asked)
        except Exception as error:  # the edge of user code: who broke cannot tell
            at.check()
            verdict = StillUnknown(said(error))
            run, effect = run_id(at.claimed.run), effect_id(dispatch.id)
            emit("effect.verify_failed", run=run, effect=effect, key=dispatch.key, error=verdict.why)
        finally:
            at.body_ended()
        if not isinstance(verdict, StillUnknown):
            break
        if asked < VERIFY_ATTEMPTS:
            await asyncio.sleep(backoff_s(VERIFY, asked))
    return verdict


async def _verify(dispatch: Dispatch, asked: int) -> Verdict:
    at, effect, verify = dispatch.at, dispatch.effect, dispatch.effect.plan.verify
    assert verify is not None
    args, kwargs = effect.signature.decode(dispatch.arguments)
    bound = effect.signature.bind(args, kwargs)
    bound.apply_defaults()
    here = BesideFrame(at, "verify", effect.settings.name, dispatch.key, asked, dispatch.idempotency_key)
    began = at.host.clock.wall_us()
    call = (dispatch.idempotency_key, dict(bound.arguments))
    try:
        verdict = await call_beside(here, verify, call, {}, timeout_s=effect.settings.timeout_s)
    finally:
        file_beside(at, dispatch.key, dispatch.attempt, f"verify {asked}", here.meters, began)
    if isinstance(verdict, Happened):
        effect.codec.roundtrip(verdict.result)  # what is none of its results tells nobody anything
    if isinstance(verdict, Happened | DidNotHappen | StillUnknown):
        return verdict
    raise UsageError(
        f"verify of effect {effect.settings.name!r} returned {verdict!r}; it returns perdure.Happened(result), "
        "perdure.DidNotHappen() or perdure.StillUnknown()"
    )


async def call_beside(
    here: BesideFrame, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, timeout_s: float | None
) -> Any:
    """Call what an effect has beside its body, its `verify` or its `undo`, in a frame and under the effect's limit.
    Whatever it raises is a failure of its own, as a body's is."""
    at = here.super_step
    token = frame.set(here)
    try:
        with at.host.deadlines.within(timeout_s):
            body = functools.partial(invoke, fn, cpu_of(fn, None), at.pools, args, kwargs)
            return await (body() if at.host.around_body is None else at.host.around_body(here, body))
    except Exception:
        raise
    except BaseException as error:
        if (failure_of_its_own := contained(error)) is error:
            raise
        raise failure_of_its_own from error
    finally:
        frame.reset(token)


# -- a person ---------------------------------------------------------------------------------------------------------


async def ask_a_person(dispatch: Dispatch, why: str) -> tuple[Happened | DidNotHappen | GiveUp, str | None]:
    """Ask, parked until there is an answer that loads; what it says, and whose it is."""
    at, said_of_answers = dispatch.at, ""
    for place in _places(dispatch):
        found = await _answer_at(dispatch, place, why + said_of_answers)
        assert found.answer is not None
        answer = await at.load(found.answer)
        at.submit(at.waiting.close(place))
        try:
            return _loaded(dispatch, answer), found.answered_by
        except NotSerializable as error:
            who = "" if found.answered_by is None else f" by {found.answered_by!r}"
            said_of_answers = f"; the answer{who} has a result that is none of this effect: {error}"
            emit("answer.unreadable", run=run_id(at.claimed.run), interrupt=interrupt_id(found.id), why=str(error))
    return GiveUp(f"none of {ANSWERS_MAX} answers has a result of this effect"), None


def _places(dispatch: Dispatch) -> Iterator[str]:
    """Where the question is asked, the first time and after answers that did not load; from where it was asked last."""
    places = [ask_place(dispatch.key, dispatch.attempt, again) for again in range(ANSWERS_MAX)]
    known = [n for n, place in enumerate(places) if dispatch.at.waiting_for(place)]
    return iter(places[max(known, default=0) :])


async def _answer_at(dispatch: Dispatch, place: str, why: str) -> Interrupt:
    """The question at this place, once it is answered."""
    at = dispatch.at
    payload = codec_for(Any).encode(_shown(dispatch, printable(why, NOTE_CHARS)))
    shown, blobs = spill(payload)
    question = NewInterrupt(
        await at.host.ids.take(1), f"effect:{dispatch.effect.settings.name}", shown, schema_bytes(ANSWER_SCHEMA),
        payload_digest(payload), "raise", None,
    )  # fmt: skip
    while True:
        wait = await at.waiting.until(place, WaitKind.ANSWER, interrupt=question, blobs=blobs)
        assert wait.target is not None
        found = await at.host.reads.interrupts.one(wait.target)
        at.check()
        if found is not None and found.state is InterruptState.ANSWERED:
            return found


def _loaded(dispatch: Dispatch, answer: bytes) -> Happened | DidNotHappen | GiveUp:
    """What an answer says; `NotSerializable` where its result is none of the effect's."""
    codec = dispatch.effect.codec
    verdict = verdict_of(answer, codec)
    if isinstance(verdict, Happened):
        codec.roundtrip(verdict.result)
    return verdict


def _shown(dispatch: Dispatch, why: str) -> dict[str, Any]:
    """What is known, for whoever is asked."""
    return {
        "question": "Did this effect happen?",
        "effect": effect_id(dispatch.id),
        "name": dispatch.effect.settings.name,
        "idempotency_key": dispatch.idempotency_key,
        "tried": dispatch.attempt,
        "why": why,
        "answer": 'one of {"happened": true, "result": ...}, {"happened": false}, {"happened": null}',
    }


def said(error: BaseException) -> str:
    """What an error says, as the ledger keeps it."""
    return printable(f"{type(error).__name__}: {text_of(error)}", NOTE_CHARS)
