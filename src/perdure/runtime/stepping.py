"""Executing a step: admit, try, record, and try again as its policy says.

The number of a try is on disk before its body runs whenever it could have run before: from the second try on, and
always where a worker that died may have been. The first try of an undisturbed run is not written ahead (that would
double the writes); so across crashes a body runs at most `attempts + 1` times.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, NoReturn

from perdure.core.changes import Change, CommitOutcome, RecordAttempt
from perdure.core.endings import Held
from perdure.core.failures import decode_error, encode_error, error_info, failure
from perdure.core.keys import retry_place
from perdure.core.records import Attempt, HeldReason, WaitKind, run_id
from perdure.core.retry import RetryIn, decide
from perdure.core.transience import retry_after_s
from perdure.errors import NotSerializable, PayloadTooLarge
from perdure.runtime.callables import exited, invoke
from perdure.runtime.frames import StepFrame, frame
from perdure.runtime.group import Batch
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.step import Step
    from perdure.runtime.superstep import SuperStep

PARK_S: Final = 5.0
"""A wait between two tries from here on is worth a commit, so that it holds no slot and outlives its worker."""


async def execute(
    at: SuperStep, step: Step[..., Any], key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the step's body until it succeeds or may not be tried again; returns the decoded record."""
    last = at.journal.last_try(key)
    attempt = 0 if last is None else last.attempt
    if last is not None and attempt >= step.settings.retry.attempts:
        if last.error is None:
            _hold_exhausted(at, key, attempt)
        return await _give_up(at, step, key, digest, attempt, last.error, last.started_at)
    if last is not None:
        await pause(at, key, attempt, _rest_s(last, at.host.clock.wall_us()))
    while True:
        attempt += 1
        await at.admit()
        at.in_flight += 1
        try:
            outcome = await _attempt(at, step, key, digest, attempt, args, kwargs)
        finally:
            at.body_ended()
        if not isinstance(outcome, RetryIn):
            return outcome[0]
        await pause(at, key, attempt, outcome.delay_s)


async def pause(at: SuperStep, key: str, attempt: int, delay_s: float) -> None:
    """Wait between two tries: a moment here, and anything longer as a durable wait, which holds no slot."""
    place = retry_place(key, attempt)
    if delay_s < PARK_S and not at.waiting_for(place):
        await asyncio.sleep(max(0.0, delay_s))
    else:
        await at.waiting.until(place, WaitKind.TIMER, delay_us=max(0, int(delay_s * 1_000_000)))
        at.submit(at.waiting.close(place))


def _hold_exhausted(at: SuperStep, key: str, attempts: int) -> NoReturn:
    """Hold the run: the last allowed try of this step began, and its worker died before it ended."""
    detail = (
        f"the worker died during try {attempts} of step {key!r}, the last one its policy allows; nobody knows how "
        "that try ended. If its body is safe to run again, release the run; tries that were cut short are then "
        "forgotten"
    )
    at.close(Held(HeldReason.EXHAUSTED, detail))
    at.check()
    raise AssertionError("it was closed, and goes on")


async def _attempt(
    at: SuperStep,
    step: Step[..., Any],
    key: str,
    digest: int,
    attempt: int,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any] | RetryIn:
    """One try and its record: the value in a tuple, or when to try again; a final failure raises."""
    started_at = at.host.clock.wall_us()
    if attempt > 1 or at.recovered:
        await record_attempt(at, key, attempt, None, started_at)
        await at.trusted()
    try:
        payload, value = await try_once(step, StepFrame(at, step.settings.name, key, attempt), args, kwargs)
    except Exception as error:
        at.check()
        now_us = at.host.clock.wall_us()
        decision = decide(
            step.settings.retry, attempt=attempt, error=error, random=at.host.random.random(), now_us=now_us
        )
        retry_in_s = decision.delay_s if isinstance(decision, RetryIn) else retry_after_s(error, now_us)
        recorded = encode_error(error_info(error, retry_in_s=retry_in_s or 0.0))
    else:
        batch = at.append(key, digest, attempt, payload, failed=False, started_at=started_at)
        await settle(at, step, batch)
        return (value,)
    if not isinstance(decision, RetryIn):
        return (await _give_up(at, step, key, digest, attempt, recorded, started_at),)
    emit("step.retried", run=run_id(at.claimed.run), key=key, attempt=attempt, delay_s=round(decision.delay_s, 3))
    await record_attempt(at, key, attempt, recorded, started_at)
    return decision


def _rest_s(last: Attempt, now_us: int) -> float:
    """What is left of the wait after a try that failed in an earlier claim. The times are those of two workers' clocks,
    which may differ: it is never longer than the whole wait was."""
    if last.error is None or last.ended_at is None:
        return 0.0
    wait_s = decode_error(last.error).retry_in_s
    return min(wait_s - (now_us - last.ended_at) / 1_000_000, wait_s)


async def settle(at: SuperStep, step: Step[..., Any], batch: Batch[Change, CommitOutcome]) -> None:
    """Where the step asks for it, go on only when its record is on disk."""
    if (step.settings.durability or at.durability) == "sync":
        await at.kept(batch)


async def try_once(
    step: Step[..., Any], here: StepFrame, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bytes, Any]:
    """One try: the encoded result and the value it decodes to."""
    value = await run_body(step, here, args, kwargs)
    try:
        return step.codec.roundtrip(value)
    except (NotSerializable, PayloadTooLarge) as error:
        error.add_note(f"returned by step {here.key!r} of run r{here.super_step.claimed.run}")
        raise


async def run_body(step: Step[..., Any], here: StepFrame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the body; returns what it returns."""
    at = here.super_step
    token = frame.set(here)
    try:
        with at.host.deadlines.within(step.settings.timeout_s):
            if at.host.around_body is not None:
                body = functools.partial(invoke, step.fn, step.place, at.pools, args, kwargs)
                return await at.host.around_body(here, step, body)
            if step.place == "loop":
                return await step.fn(*args, **kwargs)
            return await invoke(step.fn, step.place, at.pools, args, kwargs)
    except SystemExit as error:
        raise exited(error) from error
    finally:
        frame.reset(token)


async def record_attempt(at: SuperStep, key: str, attempt: int, error: bytes | None, started_at: int) -> None:
    """Put a try on disk, before its body or after its failure."""
    claimed = at.claimed
    ended_at = None if error is None else at.host.clock.wall_us()
    change = RecordAttempt(
        claimed.run, claimed.fence, claimed.thread, at.number, key, attempt, error, started_at, ended_at
    )
    at.check()
    await at.durable(at.host.committer.submit(change))


async def _give_up(
    at: SuperStep, step: Step[..., Any], key: str, digest: int, attempt: int, error: bytes, started_at: int
) -> Any:
    """Record the step's final error and raise it as its replay will."""
    batch = at.append(key, digest, attempt, error, failed=True, started_at=started_at)
    await settle(at, step, batch)
    raised = failure(error, run=at.claimed.run, key=key, attempts=attempt)
    emit("step.failed", run=run_id(at.claimed.run), key=key, attempts=attempt, error=str(raised))
    raise raised
