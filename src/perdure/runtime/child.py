"""The handle that an agent has of a run it started: what is asked of it is recorded under the place of the asking.

Waiting for its end is a durable wait; a child's end wakes its parent in one transaction, whatever the end is. A look at
it, and at its log, is recorded as it was, so that a replay sees the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perdure.core.changes import AppendCheckpoint
from perdure.core.codec import codec_for
from perdure.core.durations import microseconds
from perdure.core.errors import decode_error
from perdure.core.failures import cancellation
from perdure.core.records import ErrorInfo, Outcome, Run, RunState, WaitKind, run_id
from perdure.core.states import TERMINAL
from perdure.errors import RunCancelled, RunFailed, RunHeld, TimedOut
from perdure.runtime.awaited import run_view
from perdure.runtime.handle import Handle
from perdure.runtime.info import CheckpointInfo, RunInfo, checkpoint_info, read_result
from perdure.runtime.patience import outlast
from perdure.runtime.payloads import load_payload
from perdure.runtime.recording import Call
from perdure.runtime.starting import checked_reason
from perdure.store.pages import whole_log

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

CANCELLED_BY_PARENT: Final = "its parent cancelled it"
"""Why a child was cancelled where its parent's code does not say."""


class _Seen(msgspec.Struct, frozen=True):
    """What `status` has seen, as it is recorded: the result apart, to be read as what the child's agent returns."""

    info: RunInfo
    result: bytes | None


_SEEN: Final = codec_for(_Seen)
_LOG: Final = codec_for(list[CheckpointInfo])
_STATE: Final = codec_for(RunState)


class Child(Handle[Any]):
    """A run that this agent has started. Each verb is recorded, as a step is, and looks again only where it is called
    again; the time-out of `result` is a durable one."""

    def __init__(self, id: int, thread_id: str, agent: str) -> None:
        self._id = id
        self.run_id = run_id(id)
        self.thread_id = thread_id
        self.agent = agent

    async def result(self, timeout: float | str | timedelta | None = None) -> Any:
        return await _ended(self, None if timeout is None else microseconds(timeout, what="a time-out"))

    async def status(self) -> RunInfo:
        def as_seen(at: SuperStep, recorded: bytes) -> RunInfo:
            seen: _Seen = _SEEN.decode(recorded)
            if seen.result is None:
                return seen.info
            result, note = read_result(seen.result, _decoder(at, self.agent))
            return dataclasses.replace(seen.info, result=result, result_note=note)

        found: RunInfo = await self._recorded("status", (self.run_id,), self._look, as_seen)
        return found

    async def cancel(self, reason: str | None = None) -> RunState:
        why = CANCELLED_BY_PARENT if reason is None else checked_reason(reason)

        async def request(at: SuperStep) -> bytes:
            await at.owned()
            row = await at.host.store.cancel(self._id, why, cancellation(why))
            assert row is not None, f"{self.run_id} is to be cancelled, and not there"
            return _STATE.encode(row.state if row.state in TERMINAL else RunState.CANCELLED)

        found: RunState = await self._recorded(
            "cancel", (self.run_id, why), request, lambda at, recorded: _STATE.decode(recorded)
        )
        return found

    async def history(self) -> list[CheckpointInfo]:
        async def log(at: SuperStep) -> bytes:
            return _LOG.encode([checkpoint_info(row) async for row in whole_log(at.host.store, self._id)])

        found: list[CheckpointInfo] = await self._recorded(
            "history", (self.run_id,), log, lambda at, recorded: _LOG.decode(recorded)
        )
        return found

    async def _look(self, at: SuperStep) -> bytes:
        store = at.host.store
        (run,) = await store.get_runs([self._id])
        results: list[bytes] = []  # the recorded result, which the view would have decoded
        info = await run_view(store, run, results.append)
        return _SEEN.encode(_Seen(info, results[0] if results else None))

    async def _recorded(
        self, verb: str, args: tuple[Any, ...], act: Callable[[SuperStep], Awaitable[bytes]],
        decode: Callable[[SuperStep, bytes], Any],
    ) -> Any:  # fmt: skip
        """What the store says once, for good. What was written before is on disk by then."""
        call = await Call.of(verb, f"{verb}:{self.agent}", args)
        at = call.at
        if call.record is not None:
            return await at.replay(call.record, lambda recorded: decode(at, recorded))
        await at.flushed()
        record = call.result(await outlast(verb, lambda: act(at)))
        at.check()
        at.submit(record)
        return await call.made(record, lambda recorded: decode(at, recorded))

    def __repr__(self) -> str:
        return f"<child {self.run_id} of agent {self.agent}>"


def _decoder(at: SuperStep, name: str) -> Callable[[bytes], Any]:
    """How the result of an agent is read, which may be registered here or not."""
    agent = at.host.agents.get(name)
    return codec_for(Any).decode if agent is None else agent.codec.decode


async def _ended(child: Child, delay_us: int | None) -> Any:
    """The result of a child, when it has ended or is held; `TimedOut` if that is not so in time."""
    waited = await Call.of("result", f"result:{child.agent}", (child.run_id,))
    at = waited.at
    decode = _decoder(at, child.agent)
    try:
        if waited.record is not None:
            return await at.replay(waited.record, decode)
        with waited.waiting():
            ended = None
            while ended is None:  # somebody may have sent it on before it was looked at
                wait = await at.waiting.until(waited.key, WaitKind.RUN, delay_us=delay_us, target=child._id)
                run = await at.host.reads.runs.one(child._id)
                outcome = await at.host.reads.outcomes.one(child._id)
                at.check()
                assert run is not None, f"{child.run_id} is waited for, and not there"
                ended = await _record(waited, run, outcome)
                if ended is None and wait.due:
                    ended = waited.failed(TimedOut(f"child {child.run_id} of agent {child.agent} did not end in time"))
            at.submit(at.waiting.close(waited.key, ended))
        return await waited.made(ended, decode)
    except (RunFailed, RunCancelled, RunHeld) as error:
        error.ids.update(run_id=child.run_id, thread_id=child.thread_id)
        if isinstance(error, RunFailed):
            told = error.ids
            error.ids["error"] = ErrorInfo(told.get("type", ""), told.get("message", ""), told.get("traceback", ""))
        raise


async def _record(waited: Call, run: Run, outcome: Outcome | None) -> AppendCheckpoint | None:
    """How a child ended, as its parent's record; None where it goes on."""
    name = f"child {run_id(run.id)} of agent {run.agent}"
    if run.state is RunState.HELD:
        held = RunHeld(f"{name} is held ({run.reason}): {run.detail}", reason=run.reason, detail=run.detail)
        return waited.failed(held)
    if run.state not in TERMINAL or outcome is None:
        return None
    payload = await load_payload(waited.at.host.store, run.thread, outcome.payload)
    waited.at.check()
    match run.state:
        case RunState.COMPLETED:
            return waited.result(payload)
        case RunState.CANCELLED:
            why = run.cancel or decode_error(payload).message
            return waited.failed(RunCancelled(f"{name} was cancelled: {why}", reason=why))
        case _:
            info = decode_error(payload)
            error = RunFailed(
                f"{name} failed: {info.type}: {info.message}",
                type=info.type, message=info.message, traceback=info.traceback,
            )  # fmt: skip
            return waited.failed(error)
