"""Executing a step: admit, try, record, and try again as its policy says.

The number of a try is on disk before its body runs whenever it could have run before: from the second try on, and
always where a worker that died may have been. The first try of an undisturbed run is not written ahead (that would
double the writes); so across crashes a body runs at most `attempts + 1` times.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, NoReturn

from perdure.core.changes import Change, CommitOutcome, RecordAttempt
from perdure.core.endings import Held
from perdure.core.failures import decode_error, encode_error, error_info, failure
from perdure.core.records import Attempt, HeldReason, run_id
from perdure.core.retry import RetryIn, decide
from perdure.core.transience import retry_after_s
from perdure.errors import NotSerializable, PayloadTooLarge, Unwind
from perdure.runtime.budgeting import NoBudgetError, reserve
from perdure.runtime.callables import contained, invoke
from perdure.runtime.frames import StepFrame, frame
from perdure.runtime.group import Batch
from perdure.runtime.metering import NO_USE, Use, file_cut_off, use_of
from perdure.runtime.pausing import pause
from perdure.runtime.strays import make_up_for
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.step import Step
    from perdure.runtime.superstep import SuperStep


async def execute(
    at: SuperStep, step: Step[..., Any], key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the step's body until it succeeds or may not be tried again; returns the decoded record."""
    last = at.journal.last_try(key)
    attempt = 0 if last is None else last.attempt
    if last is not None and last.error is None and step.undone_by_crash:
        attempt -= 1
    if last is not None and attempt >= step.settings.retry.attempts:
        if last.error is None:
            _hold_exhausted(at, key, attempt)
        return await _give_up(at, step, key, digest, attempt, last.error, last.started_at)
    if last is not None:
        await pause(at, key, attempt, _rest_s(last, at.host.clock.wall_us()))
    while True:
        attempt += 1
        if at.claimed.budgets:
            await _reserve(at, step, key, digest, attempt)
        await admitted(StepFrame(at, step.settings.name, key, attempt))
        at.in_flight += 1
        try:
            outcome = await _attempt(at, step, key, digest, attempt, args, kwargs)
        finally:
            at.body_ended()
        if not isinstance(outcome, RetryIn):
            return outcome[0]
        await pause(at, key, attempt, outcome.delay_s)


async def admitted(here: StepFrame) -> None:
    """Wait until a try may begin; where it is cut off before, what was reserved for it is released."""
    try:
        await here.super_step.admit()
    except (asyncio.CancelledError, Unwind):
        file_cut_off(here, here.super_step.host.clock.wall_us(), began=False)
        raise


async def _reserve(at: SuperStep, step: Step[..., Any], key: str, digest: int, attempt: int) -> None:
    """Reserve what a try may cost. Where nobody raises what it counts against, the step has failed."""
    try:
        await reserve(StepFrame(at, step.settings.name, key, attempt), step.settings.estimate)
    except NoBudgetError as refused:
        error = encode_error(error_info(refused.error))
        await _give_up(at, step, key, digest, attempt, error, at.host.clock.wall_us())


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
    here = StepFrame(at, step.settings.name, key, attempt)
    if attempt > 1 or at.recovered:
        await _begin(here, started_at)
    try:
        value = await step.try_and_record(here, digest, started_at, args, kwargs)
    except (asyncio.CancelledError, Unwind):
        file_cut_off(here, started_at, began=True)
        raise
    except Exception as error:
        if at.ending is not None:
            file_cut_off(here, started_at, began=True)
            at.check()
        now_us = at.host.clock.wall_us()
        decision = decide(
            step.settings.retry, attempt=attempt, error=error, random=at.host.random.random(), now_us=now_us
        )
        retry_in_s = decision.delay_s if isinstance(decision, RetryIn) else retry_after_s(error, now_us)
        recorded = encode_error(error_info(error, retry_in_s=retry_in_s or 0.0))
    else:
        make_up_for(at, here.put_off)
        return (value,)
    use = use_of(at, here.meters, here.began_s)
    if not isinstance(decision, RetryIn):
        try:
            return (await _give_up(at, step, key, digest, attempt, recorded, started_at, use),)
        finally:
            make_up_for(at, here.put_off)
    emit("step.retried", run=run_id(at.claimed.run), key=key, attempt=attempt, delay_s=round(decision.delay_s, 3))
    await record_attempt(at, key, attempt, recorded, started_at, use)
    make_up_for(at, here.put_off)
    return decision


async def _begin(here: StepFrame, started_at: int) -> None:
    """Put on disk that a try begins."""
    at = here.super_step
    try:
        await record_attempt(at, here.key, here.attempt, None, started_at)
        await at.trusted()
    except (asyncio.CancelledError, Unwind):
        file_cut_off(here, started_at, began=False)
        raise


def _rest_s(last: Attempt, now_us: int) -> float:
    """What is left of the wait after a try that failed in an earlier claim. The times are those of two workers' clocks,
    which may differ: it is never longer than the whole wait was."""
    if last.error is None or last.ended_at is None:
        return 0.0
    wait_s = decode_error(last.error).retry_in_s
    return min(wait_s - (now_us - last.ended_at) / 1_000_000, wait_s)


async def record_try(
    step: Step[..., Any], here: StepFrame, digest: int, started_at: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """One try and, where it succeeds, its record: the value that this decodes to."""
    at = here.super_step
    payload, value = await try_once(step, here, args, kwargs)
    use = use_of(at, here.meters, here.began_s)
    batch = at.append(here.key, digest, here.attempt, payload, failed=False, started_at=started_at, use=use)
    here.filed = True
    await settle(at, step, batch)
    return value


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
        with at.host.deadlines.within(step.settings.timeout_s) as here.deadline:
            if at.host.around_body is not None:
                body = functools.partial(invoke, step.fn, step.cpu, at.pools, args, kwargs)
                return await at.host.around_body(here, body)
            if step.cpu == "loop":
                return await step.fn(*args, **kwargs)
            return await invoke(step.fn, step.cpu, at.pools, args, kwargs)
    except Exception:
        raise
    except BaseException as error:
        if (failure_of_its_own := contained(error)) is error:
            raise
        raise failure_of_its_own from error
    finally:
        frame.reset(token)


async def record_attempt(
    at: SuperStep, key: str, attempt: int, error: bytes | None, started_at: int, use: Use = NO_USE
) -> None:  # fmt: skip
    """Put a try on disk, before its body or after its failure."""
    change = attempt_of(at, key, attempt, error, started_at, use)
    at.check()
    await at.durable(at.host.committer.submit(change))


def attempt_of(
    at: SuperStep, key: str, attempt: int, error: bytes | None, started_at: int, use: Use = NO_USE
) -> RecordAttempt:  # fmt: skip
    """The change that puts a try on disk."""
    claimed = at.claimed
    ended_at = None if error is None else at.host.clock.wall_us()
    return RecordAttempt(
        claimed.run, claimed.fence, claimed.thread, at.number, key, attempt, error, started_at, ended_at, use.meters,
        use.spent,
    )  # fmt: skip


async def _give_up(
    at: SuperStep, step: Step[..., Any], key: str, digest: int, attempt: int, error: bytes, started_at: int,
    use: Use = NO_USE,
) -> Any:  # fmt: skip
    """Record the step's final error and raise it as its replay will."""
    batch = at.append(key, digest, attempt, error, failed=True, started_at=started_at, use=use)
    await settle(at, step, batch)
    raised = failure(error, run=at.claimed.run, key=key, attempts=attempt)
    emit("step.failed", run=run_id(at.claimed.run), key=key, attempts=attempt, error=str(raised))
    raise raised
