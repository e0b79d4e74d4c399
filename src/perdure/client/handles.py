"""What `start` and `thread` give: names for things in the store, with verbs on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from perdure.client import mail
from perdure.client.commands import command
from perdure.client.forking import UNSET, Edits, Unset, fork
from perdure.client.mail import MessageInfo
from perdure.client.requests import page_limit, run_number
from perdure.core.budgets import Budget
from perdure.core.durations import seconds
from perdure.core.effects import EffectFilter, EffectState
from perdure.core.failures import first_mended, not_done
from perdure.core.records import AgentState, ErrorInfo, Kind, Run, RunState, run_id
from perdure.core.shown import shown
from perdure.errors import NotFound, NotSerializable, RunCancelled, RunFailed, RunHeld, StoreError, UsageError
from perdure.runtime import starting
from perdure.runtime.handle import Handle
from perdure.runtime.info import CheckpointInfo, RunInfo, agent_state, checkpoint_info, named
from perdure.runtime.payloads import load_state
from perdure.store.pages import whole_log

if TYPE_CHECKING:
    from perdure.app import App

R = TypeVar("R")


class RunHandle(Handle[R]):
    """A run, as a client sees it: good in any process."""

    def __init__(self, app: App, id: int, thread_id: str) -> None:
        self._app = app
        self._id = id
        self.run_id = run_id(id)
        self.thread_id = thread_id

    async def result(self, timeout: float | str | timedelta | None = None) -> R:
        client = await self._app._client()
        limit = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit):
                settled = await client.settled(self._id)
        except NotFound as missing:
            raise NotFound(
                f"no run {self.run_id} in {client.store.url}; `perdure runs list` shows those there are",
                run_id=self.run_id,
            ) from missing
        except TimeoutError:
            if limit is None:
                raise
            raise TimeoutError(
                f"run {self.run_id} did not end within {limit:g} s. It is on disk and goes on where a worker is alive; "
                f"{self._command('runs show')} says what it waits for"
            ) from None
        left = EffectFilter(run=self._id, state=EffectState.UNDO_FAILED)
        not_undone = len(await client.store.effects(left)) if settled.run.undoing else 0
        return self._outcome(settled.run, await self._app._info(settled.run, settled.outcome), not_undone)

    def _outcome(self, run: Run, info: RunInfo, not_undone: int) -> R:
        """The result of a run that has come to rest, or the error that says why there is none."""
        match info.state:
            case RunState.COMPLETED if info.result_note is not None:
                raise NotSerializable(
                    f"run {self.run_id} of agent {info.agent} has completed, but its result can be had only "
                    f"{info.result_note}; {self._command('runs show')} shows it",
                    run_id=self.run_id, thread_id=self.thread_id, recorded=info.result,
                )  # fmt: skip
            case RunState.COMPLETED:
                result: R = info.result
                return result
            case RunState.FAILED:
                error = info.error
                what = "no error recorded" if error is None else f"{error.type}: {error.message}"
                failed = RunFailed(
                    f"run {self.run_id} of agent {info.agent} failed: {what.rstrip('.')}; see "
                    f"{self._command('runs show')}{self._undone(not_undone) or self._sent_on(run, error)}",
                    run_id=self.run_id, thread_id=self.thread_id, error=error,
                )  # fmt: skip
                if error is not None and error.traceback:
                    failed.add_note(f"As recorded where it failed:\n{error.traceback}")
                raise failed
            case RunState.HELD:
                why = f"{run.reason}): {(run.detail or '').rstrip('.')}"
                raise RunHeld(
                    f"run {self.run_id} of agent {info.agent} is held ({why}; look at it "
                    f"({self._command('runs show')}), then send it on with {self._command('release')}",
                    run_id=self.run_id, thread_id=self.thread_id, reason=run.reason, detail=run.detail,
                )  # fmt: skip
            case _:
                reason = run.reason if run.cancel is None else run.cancel
                left = not_done(info.error)
                raise RunCancelled(
                    f"run {self.run_id} was cancelled: {reason}"
                    + (f"; not done: {left}" if left else "")
                    + self._undone(not_undone),
                    run_id=self.run_id, thread_id=self.thread_id, reason=reason,
                )  # fmt: skip

    def _sent_on(self, run: Run, error: ErrorInfo | None) -> str:
        """How a failed run is sent on; one whose effects were undone is not."""
        if run.undoing:
            return "; what it had done was undone"
        first = first_mended(error)
        before = "" if first is None else f"{command(first, self._app.store_name)}, and then "
        return f", and send it on with {before}{self._command('retry')}"

    def _undone(self, failed: int) -> str:
        """What a person has to know of undos that failed."""
        if not failed:
            return ""
        listing = command(f"effects list --run {self.run_id} --state undo_failed", self._app.store_name)
        return (
            f"; {failed} of what it had done could NOT be undone ({listing}); "
            f"{command(f'retry {self.run_id} --undo', self._app.store_name)} tries that again"
        )

    def _command(self, verb: str) -> str:
        return command(f"{verb} {self.run_id}", self._app.store_name)

    async def status(self) -> RunInfo:
        return await self._app.run_info(self.run_id)

    async def cancel(self, reason: str | None = None) -> RunState:
        return await self._app.cancel(self.run_id, reason=reason)

    async def history(self) -> list[CheckpointInfo]:
        client = await self._app._client()
        return [checkpoint_info(row) async for row in whole_log(client.store, self._id)]

    def __repr__(self) -> str:
        return f"<run {self.run_id} on thread {self.thread_id!r}>"


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread, as it was when it was read."""

    thread_id: str
    agent: str
    state: AgentState
    head: str | None
    """The run whose turn it is."""
    depth: int
    """Unfinished runs, the head included."""


class ThreadHandle:
    """An agent's durable identity: its state, its runs, its checkpoints."""

    def __init__(self, app: App, thread_id: str) -> None:
        self._app = app
        self.thread_id = thread_id

    async def info(self) -> ThreadInfo:
        """What the thread is doing."""
        client = await self._app._client()
        row = await self._row()
        head = (await client.store.get_runs([row.head]))[0] if row.head is not None else None
        return ThreadInfo(
            row.thread_id, row.agent, agent_state(head), None if row.head is None else run_id(row.head), row.depth
        )

    async def state(self, at: CheckpointInfo | None = None) -> Any:
        """The thread's newest state, or its state at one of its checkpoints, as its agent declares it (plain data where
        the agent is not registered here). None before the first one."""
        client = await self._app._client()
        row = await self._row()
        if at is not None:
            _must_be_checkpoint("at", at)
            run, super_step = run_number(at.run_id), at.super_step
        elif row.snapshot_run is None or row.snapshot_step is None:
            return None
        else:
            run, super_step = row.snapshot_run, row.snapshot_step
        found = await client.store.checkpoints(run, super_step=super_step, boundaries=True)
        if not found:
            raise StoreError(f"checkpoint {super_step} of run {run_id(run)} is missing from the store")
        root = found[0].state
        if root is None:
            return None
        data, _ = await load_state(client.store, row.id, root)
        agent = self._app.agents.get(row.agent)
        if agent is None or agent.state is None:
            return data
        try:
            return agent.state.load(data)
        except Exception as error:  # the edge of user code: a constructor or a validator of the declared type
            raise NotSerializable(
                f"the state of thread {self.thread_id!r} was saved by another version of agent {row.agent}, and does "
                f"not load: {named(error)}; `perdure threads show {self.thread_id} --state` shows it",
                thread_id=self.thread_id,
            ) from error

    async def runs(self, limit: int = 100) -> list[RunInfo]:
        """Its runs, newest id first. (Programs number what they start from blocks of ids of their own, so where several
        start runs on one thread, `checkpoints` has their order.)"""
        return await self._app.runs(thread_id=self.thread_id, limit=limit)

    async def checkpoints(self, *, limit: int = 100, after: CheckpointInfo | None = None) -> list[CheckpointInfo]:
        """Its boundaries and run ends over all its runs, newest first; `after` continues a listing."""
        if after is not None:
            _must_be_checkpoint("after", after)
        page = page_limit(limit)
        client = await self._app._client()
        row = await self._row()
        last = None if after is None else (run_number(after.run_id), after.super_step)
        rows = await client.store.thread_checkpoints(row.id, limit=page, after=last)
        return [checkpoint_info(found) for found in rows if found.kind is not Kind.STEP]

    async def mailbox(self, *, limit: int = 100, after: MessageInfo | None = None) -> list[MessageInfo]:
        """The messages that wait to be received, in the order in which they will be; `after` continues a listing."""
        if after is not None and not isinstance(after, MessageInfo):
            raise UsageError(
                f"after is {shown(after)}; give the last message of the page before, as this returned it: "
                "thread.mailbox(after=page[-1])"
            )
        row = await self._row()
        last = 0 if after is None else after.seq
        return await mail.mailbox(await self._app._client(), row.id, row.thread_id, limit=limit, after=last)

    async def fork(
        self,
        super_step: int | None = None,
        key: str | None = None,
        *,
        state: Any = UNSET,
        args: Sequence[Any] | Literal[Unset.UNSET] = UNSET,
        kwargs: Mapping[str, Any] | Literal[Unset.UNSET] = UNSET,
        run_id: str | None = None,
        thread_id: str | None = None,
        budget: Budget | None = None,
    ) -> RunHandle[Any]:
        """Start a run on a new thread that goes on from a checkpoint of this one, which stays as it is.

        It begins at `super_step` of the run `run_id` (by default the current super-step of the newest run), with the
        records of the steps that were recorded before `key`, or with none. `state` replaces the state that the
        super-step began with, `args` and `kwargs` its arguments; both are checked by the agent, which then has to be
        registered here. `thread_id`: the new thread's, by default one of its own. `budget`: what the new run may use;
        without it, what each run of its agent may, if that is registered here. (What the forked run counted against is
        its own.)

        Raises `NotFound`, with what there is, and `Conflict` where the new thread exists.
        """
        edits = Edits(state, args, kwargs)
        row = await self._row()
        agent = self._app.find_agent(row.agent) if edits.any else None
        known = self._app.agents.get(row.agent)
        usual = None if known is None else known.settings.budget
        started = await fork(
            await self._app._client(), row, agent, run=run_id, super_step=super_step, key=key, thread_id=thread_id,
            edits=edits, limits=usual if budget is None else starting.checked_budget(budget),
            billing=starting.billing_to(self._app._billing()),
        )  # fmt: skip
        return RunHandle(self._app, started.run, started.thread_id)

    async def _row(self) -> Any:
        client = await self._app._client()
        row = await client.store.get_thread(self.thread_id)
        if row is None:
            raise NotFound(
                f"no thread {self.thread_id!r} in {client.store.url}; `perdure threads list` shows those there are",
                thread_id=self.thread_id,
            )
        return row

    def __repr__(self) -> str:
        return f"<thread {self.thread_id!r}>"


def _must_be_checkpoint(what: str, given: object) -> None:
    if not isinstance(given, CheckpointInfo):
        raise UsageError(
            f"{what} is {shown(given)}; give a checkpoint of this thread, as thread.checkpoints() lists them"
        )
