"""An execution: one claim of a run, from its arguments to the write that ends the slice.

Load, call the agent, turn the ending into one change, wait until it is on disk. `Again` goes round: it files the
boundary and calls the agent with the new arguments and the state *as recorded*, exactly as another worker would
after a crash.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.core import snapshot
from perdure.core.changes import (
    BeginSuperStep,
    BeginUndo,
    Change,
    CommitOutcome,
    EndRun,
    HoldRun,
    RecordAttempt,
    RequeueRun,
)
from perdure.core.effects import Effect, Undoing
from perdure.core.endings import Again, Ending, HandedBack, Held, Lost, Parked, Raised, Returned
from perdure.core.errors import printable
from perdure.core.failures import cancellation, encode_error, listed, run_error
from perdure.core.records import Blob, Claimed, HeldReason, RunState, run_id
from perdure.core.retry import RetryIn, Stop, decide
from perdure.core.snapshot import spill
from perdure.errors import DeadlineExceeded, NotSerializable, StoreError, UsageError
from perdure.runtime.agent import STATE, Agent
from perdure.runtime.callables import exited
from perdure.runtime.group import Batch
from perdure.runtime.host import Host
from perdure.runtime.info import named
from perdure.runtime.interruption import Cancelled, Interruption, Overdue
from perdure.runtime.payloads import load_payload, load_state
from perdure.runtime.step import Step
from perdure.runtime.superstep import SuperStep
from perdure.runtime.undoing import begun_to_undo, has_done, may_undo, undo_all, undoable
from perdure.telemetry import emit


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a super-step begins: the recorded arguments, and the recorded state as plain data (None: no state yet)."""

    arguments: bytes
    state: Any


class Execution:
    """One run in this worker's hands."""

    def __init__(
        self, host: Host, claimed: Claimed, agent: Agent[..., Any], *, on_over: Callable[[], None] = lambda: None
    ) -> None:
        self.host = host
        self.claimed = claimed
        self.agent = agent
        self.number = claimed.super_step
        self.root = claimed.state
        self.known: frozenset[bytes] = frozenset()
        self.boundary: Boundary | None = None
        self.current: SuperStep | None = None
        self.claimed_s = host.clock.monotonic()
        self.interruption: Interruption | None = None if claimed.cancel is None else Cancelled(claimed.cancel)
        self.over: Ending | None = None
        """Set from outside: no further super-step begins."""
        self._used: dict[tuple[int, str], Step[..., Any]] = {}
        self._undoing = False
        """Its code is over: there is nobody to be interrupted."""
        self._on_over = on_over
        """Called where its ending is on disk and some of its code goes on all the same."""
        self._left: SuperStep | None = None
        """The last super-step, whose code may not have ended with it."""
        self._regrets = False
        """A `compensate` of its code was broken off."""
        self._waited = bool(claimed.waits)
        self._boundary: Batch[Change, CommitOutcome] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._filed: deque[asyncio.Future[CommitOutcome]] = deque()
        """Boundaries that may not be on disk yet, oldest first."""

    async def run(self) -> Ending:
        """Execute the run until this slice of it ends; returns how, after the write that says so is on disk and its
        code has ended."""
        self._watch_deadline()
        try:
            ending = await self._slice()
        finally:
            if self._deadline is not None:
                self._deadline.cancel()
        if self._left is not None and self._left.unwinds:
            self._on_over()
        await self.unwound()
        return ending

    async def unwound(self) -> None:
        """Wait until the code of the last super-step has ended; not for ever."""
        if self._left is not None:
            await self._left.unwound()
            self._left = None

    @property
    def unwinds(self) -> bool:
        """Whether some of its code has not ended, though it has been told to."""
        return self._left is not None and self._left.ending is not None and self._left.unwinds

    async def _slice(self) -> Ending:
        while True:
            if self.claimed.undoing is not None:
                return await self._undo(self.claimed.undoing)
            ending = await self._super_step()
            change = self._write(ending)
            if change is None:
                return ending
            if isinstance(change, EndRun) and (done := await self._to_undo(change)):
                return await self._begin_undo(change, done)
            if isinstance(change, EndRun) and self._regrets:
                return await self._end_regretting(change, ending)
            if isinstance(change, BeginSuperStep | RequeueRun):
                await self.unwound()  # whoever goes on with it is not to meet its code
            batch = self.host.committer.submit(change)
            if not isinstance(change, BeginSuperStep):
                return await self._durable(batch, change, ending)
            await self._keep_close(batch)
            await self.host.committer.room()  # an agent without steps is not held back elsewhere

    async def _to_undo(self, end: EndRun) -> list[Effect]:
        """Its effects that have an undo, where it ends badly and has done any of them."""
        if end.outcome is RunState.COMPLETED or self._left is None or not (may_undo() or self.claimed.attempt > 1):
            return []
        if self._left.last is not None:  # what was done last is in the ledger
            await asyncio.shield(self._left.last.done)
        rows = await undoable(self._left)
        return rows if has_done(rows) else []

    async def _begin_undo(self, end: EndRun, done: list[Effect]) -> Ending:
        """Decide on disk how it ends; then undo what it has done."""
        claimed = self.claimed
        decided = BeginUndo(claimed.run, claimed.fence, claimed.thread, end.outcome, end.payload, end.blobs)
        batch = self.host.committer.submit(decided)
        await asyncio.shield(batch.done)
        return await self._undo(Undoing(end.outcome, end.payload), done)

    async def _undo(self, decided: Undoing, done: list[Effect] | None = None) -> Ending:
        """Undo what is left to undo, and end as was decided."""
        ending = await self._undone(done)
        change = self._decided(decided) if isinstance(ending, Returned) else self._write(ending)
        return ending if change is None else await self._durable(self.host.committer.submit(change), change, ending)

    async def _end_regretting(self, end: EndRun, ending: Ending) -> Ending:
        """End well, after the undos that a `compensate` has begun which was broken off: by the crash of another worker,
        where the time-out around it had run out, so that the code did not come to it again."""
        assert self._left is not None, "it has called its code"
        begun = begun_to_undo(await undoable(self._left))
        undone = await self._undone(begun) if begun else ending
        if isinstance(undone, Returned):
            return await self._durable(self.host.committer.submit(end), end, ending)
        change = self._write(undone)
        return undone if change is None else await self._durable(self.host.committer.submit(change), change, undone)

    async def _undone(self, done: list[Effect] | None) -> Ending:
        """Undo these, or what the ledger says; none of its code runs any more. Returns how that ended."""
        self._undoing = True
        await self.unwound()
        step = self.current = self._left = self._new_super_step()
        if (over := self._over()) is not None:
            step.close(over)
        try:
            ending = await step.run(functools.partial(undo_all, step, done))
        finally:
            self.current = None
        if isinstance(ending, Raised):
            raise ending.error
        return ending

    def _decided(self, decided: Undoing) -> EndRun:
        """The end that was decided; but a run whose cancellation was requested meanwhile ends as cancelled only."""
        claimed, outcome, payload = self.claimed, decided.outcome, decided.payload
        why = self.interruption
        if isinstance(why, Cancelled) and outcome is not RunState.CANCELLED:
            outcome, payload = RunState.CANCELLED, cancellation(why.reason)
        return EndRun(
            claimed.run, claimed.fence, claimed.thread, self.number + 1, outcome, payload, None,
            self.host.clock.wall_us(), waited=True, reserves=bool(claimed.budgets),
        )  # fmt: skip

    def close(self, ending: Ending) -> None:
        """End it from outside."""
        self.over = self.over or ending
        if self.current is not None:
            self.current.close(ending)

    def interrupt(self, why: Interruption) -> None:
        """End its code from outside, and let it clean up."""
        if not isinstance(self.interruption, Cancelled):
            self.interruption = why
        if self.current is not None and not self._undoing:
            self.current.interrupt(why)

    def _watch_deadline(self) -> None:
        """Interrupt it when its deadline comes; at once where that has been. (The store's time of the claim is behind
        by the time the answer took: never too early.)"""
        if self.claimed.deadline_at is None:
            return
        left_s = (self.claimed.deadline_at - self.claimed.now) / 1_000_000
        if left_s <= 0:
            self.interrupt(Overdue())
        else:
            self._deadline = asyncio.get_running_loop().call_later(left_s, self.interrupt, Overdue())

    def drain(self) -> None:
        """Hand it back at the next checkpoint."""
        if self.current is not None:
            self.current.drain()

    async def _keep_close(self, boundary: Batch[Change, CommitOutcome]) -> None:
        """Run at most `ahead_max` super-steps ahead of the disk, so that whoever takes the run over knows which bodies
        may have begun before (`SuperStep.recovered`)."""
        self._boundary = boundary
        self._filed.append(boundary.done)
        while self._filed and (self._filed[0].done() or len(self._filed) > self.host.ahead_max):
            await asyncio.shield(self._filed.popleft())

    async def _super_step(self) -> Ending:
        if self.over is not None:
            return self.over
        self._left = step = self._new_super_step()
        if self.host.draining:
            return HandedBack()
        if self.interruption is not None and not self._begun(step):
            return Raised(asyncio.CancelledError())
        try:
            call, self._state = await self._load()
        except (NotSerializable, StoreError) as error:
            return Held(HeldReason.SCHEMA, f"super-step {self.number} does not load: {error}")
        except UsageError as error:
            return Raised(error)
        except Exception as error:  # the edge of user code: a constructor or a validator of the declared types
            return Held(HeldReason.SCHEMA, f"super-step {self.number} does not load: {named(error)}")
        self.current = step
        step.interruption = self.interruption
        if (over := self._over()) is not None:  # closed while it loaded
            step.close(over)
        try:
            return await step.run(call)
        finally:
            self.current = None
            self._waited = step.waited
            self._regrets = self._regrets or step.regrets
            if isinstance(step.interruption, Cancelled) or self.interruption is None:
                self.interruption = step.interruption

    def _begun(self, step: SuperStep) -> bool:
        """Whether code of this super-step may have run before: there may be something to clean up."""
        first = self.number == 1 and self.claimed.attempt == 1
        return step.number == self.claimed.super_step and not first

    def _new_super_step(self) -> SuperStep:
        step = SuperStep(
            self.host, self.claimed, number=self.number, durability=self.agent.settings.durability,
            claimed_s=self.claimed_s, after=self._boundary,
        )  # fmt: skip
        step.used = self._used
        return step

    def _over(self) -> Ending | None:
        return self.over

    async def _load(self) -> tuple[functools.partial[Any], Any]:
        """The agent's call with its recorded arguments and state, and the state."""
        if self.boundary is None:
            self.boundary = await self._read_boundary()
        args, kwargs = self.agent.signature.decode(self.boundary.arguments)
        if self.agent.state is None:
            return functools.partial(self._call, args, kwargs), None
        data = self.boundary.state
        state = self.agent.state.first() if data is None else self.agent.state.load(data)
        return functools.partial(self._call, args, {**kwargs, STATE: state}), state

    async def _read_boundary(self) -> Boundary:
        """The boundary this claim begins at; a later one is remembered when it is filed (it may not be on disk yet)."""
        store, thread = self.host.store, self.claimed.thread
        arguments = await load_payload(store, thread, self.claimed.arguments)
        if self.agent.state is None or self.root is None:
            return Boundary(arguments, None)
        data, self.known = await load_state(store, thread, self.root)
        return Boundary(arguments, data)

    async def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.host.deadlines.within(self.agent.settings.timeout_s):
            try:
                return await self.agent.fn(*args, **kwargs)
            except SystemExit as error:
                raise exited(error) from error

    def _write(self, ending: Ending) -> Change | None:
        """The change that an ending is, and the log's word on it; None where nothing may be written."""
        claimed = self.claimed
        run, fence, thread = claimed.run, claimed.fence, claimed.thread
        match ending:
            case Returned() | Raised() if self.interruption is not None:
                return self._interrupted(self.interruption, ending)
            case Returned(value):
                try:
                    return self._again(value) if isinstance(value, Again) else self._complete(value)
                except Exception as error:  # what was returned cannot be recorded, or user code broke while it was
                    return self._fail(error)
            case Raised(error):
                return self._fail(error)
            case Held(reason, detail):
                detail = printable(detail)
                emit("run.held", run=run_id(run), reason=reason, detail=detail)
                return HoldRun(run, fence, thread, reason, detail)
            case HandedBack():
                return RequeueRun(run, fence, thread, 0)
            case Parked():
                return None
            case Lost(why):
                emit("run.lost", run=run_id(run), why=why)
                return None

    def _again(self, again: Again) -> BeginSuperStep:
        claimed = self.claimed
        arguments = self.agent.signature.bind_encode(again.args, again.kwargs)
        payload, blobs = spill(arguments)
        data, root, state_blobs = self._freeze()
        self.number += 1
        self.root = root
        self.boundary = Boundary(arguments, data)
        return BeginSuperStep(
            claimed.run, claimed.fence, claimed.thread, self.number, payload, root, self.host.clock.wall_us(),
            blobs + state_blobs, self._waited,
        )  # fmt: skip

    def _complete(self, value: Any) -> EndRun:
        payload = self.agent.codec.encode(value)
        _, root, blobs = self._freeze()
        return self._end(RunState.COMPLETED, payload, root, blobs)

    def _fail(self, error: BaseException) -> Change:
        claimed = self.claimed
        before = [each.attempt for each in claimed.attempts if (each.super_step, each.key) == (self.number, "")]
        tries = 1 + max(before, default=0)
        decision: RetryIn | Stop = Stop()
        undone = self._left is not None and self._left.compensated
        if isinstance(error, Exception) and not isinstance(error, UsageError) and not undone:
            host = self.host
            decision = decide(
                self.agent.settings.retry, attempt=tries, error=error, random=host.random.random(),
                now_us=host.clock.wall_us(),
            )  # fmt: skip
        info = run_error(error)
        if isinstance(decision, RetryIn):
            return self._retry(tries, encode_error(info), info.failed_keys, decision.delay_s)
        emit("run.failed", run=run_id(claimed.run), agent=claimed.agent, error=f"{info.type}: {info.message}")
        return self._end(RunState.FAILED, encode_error(info), None, ())

    def _retry(self, tries: int, error: bytes, failed_keys: tuple[str, ...], delay_s: float) -> RequeueRun:
        """The run goes back into the queue; what failed is forgotten, what succeeded stays recorded."""
        claimed = self.claimed
        now = self.host.clock.wall_us()
        self.host.committer.submit(
            RecordAttempt(claimed.run, claimed.fence, claimed.thread, self.number, "", tries, error, now, now)
        )
        return RequeueRun(claimed.run, claimed.fence, claimed.thread, int(delay_s * 1_000_000), failed_keys)

    def _end(self, outcome: RunState, payload: bytes, root: bytes | None, state_blobs: tuple[Blob, ...]) -> EndRun:
        claimed = self.claimed
        payload, blobs = spill(payload)
        return EndRun(
            claimed.run, claimed.fence, claimed.thread, self.number + 1, outcome, payload, root,
            self.host.clock.wall_us(), blobs + state_blobs, self._waited, bool(claimed.budgets),
        )  # fmt: skip

    def _interrupted(self, why: Interruption, ending: Returned | Raised) -> EndRun:
        """The end of a run that was interrupted, whatever its code made of it; what went wrong in the cleaning up is
        kept."""
        claimed = self.claimed
        error = ending.error if isinstance(ending, Raised) else None
        after = None if isinstance(error, asyncio.CancelledError) else error
        not_done = [] if self._left is None else self._left.not_done()
        if isinstance(why, Cancelled):
            emit("run.cancelled", run=run_id(claimed.run), agent=claimed.agent, reason=why.reason)
            return self._end(RunState.CANCELLED, cancellation(why.reason, after, not_done=not_done), None, ())
        left = f"; not done: {listed(not_done)}" if not_done else ""
        overdue = DeadlineExceeded(f"run {run_id(claimed.run)} did not end before its deadline{left}")
        overdue.__cause__ = after
        emit("run.failed", run=run_id(claimed.run), agent=claimed.agent, error=str(overdue))
        return self._end(RunState.FAILED, encode_error(run_error(overdue)), None, ())

    def _freeze(self) -> tuple[Any, bytes | None, tuple[Blob, ...]]:
        """The state as plain data, its root, and the blobs it needs that are not stored yet. An agent without state
        keeps what its thread has."""
        if self.agent.state is None:
            return None, self.root, ()
        data = self.agent.state.dump(self._state)
        frozen = snapshot.freeze(data, self.known)
        self.known = frozen.refs
        return data, frozen.root, frozen.blobs

    async def _durable(self, batch: Batch[Change, CommitOutcome], change: Change, ending: Ending) -> Ending:
        outcome = await asyncio.shield(batch.done)
        run = self.claimed.run
        if not outcome.alive or run in outcome.lost:
            emit("run.lost", run=run_id(run), why="its last commit came too late")
            return Lost("its last commit came too late")
        if run in outcome.refused:
            return await self._refused(outcome.refused[run])
        if run in outcome.cancelled and isinstance(change, EndRun) and change.outcome is not RunState.CANCELLED:
            return await self._too_late(ending)
        return ending

    async def _too_late(self, ending: Ending) -> Ending:
        """It ended otherwise, but its cancellation had been requested before: that has won."""
        self.interruption = Cancelled(await self.host.waker.why_cancelled(self.claimed.run))
        change = self._write(ending)
        assert isinstance(change, EndRun)
        if done := await self._to_undo(change):
            return await self._begin_undo(change, done)
        return await self._durable(self.host.committer.submit(change), change, ending)

    async def _refused(self, why: str) -> Ending:
        """The store would not take what the run wrote: a person has to see it, and nobody else may suffer."""
        ending = Held(HeldReason.REFUSED, f"the store refused a write of this run: {why}")
        change = self._write(ending)
        assert change is not None
        await asyncio.shield(self.host.committer.submit(change).done)
        return ending
