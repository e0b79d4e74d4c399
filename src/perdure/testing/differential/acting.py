"""What a program on an app is made of, and telling it to an app on one store.

An app's program is sequential: after each start, answer, message or the like, whoever could go on has gone on until it
ended, is held, waits for somebody, or waits behind one that does (or nobody works, and all wait). So everything that
can be read afterwards is the same on every store, though runs of several threads execute beside each other in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, is_dataclass, replace
from datetime import datetime
from typing import Any, Final, assert_never

import msgspec

from perdure.app import App
from perdure.client.inbox import InterruptInfo
from perdure.core.budgets import Budget
from perdure.core.records import RunState
from perdure.errors import PerdureError
from perdure.runtime.handle import Handle
from perdure.runtime.info import CheckpointInfo, RunInfo
from perdure.testing.differential import trading
from perdure.testing.differential.agents import RACING, TIMED, app_on
from perdure.testing.differential.answers import error
from perdure.testing.differential.grounds import StoreGround

WORKER: Final[dict[str, Any]] = {"name": "w", "deployment": "v1", "concurrency": 4, "poll_s": 0.05, "grace_s": 5.0}
PATIENCE_S: Final = 20.0
LOOK_S: Final = 0.02
"""How long one run is waited for before all are looked at again."""

ID: Final = re.compile(r"\b([rwimd])([1-9]\d*)\b")
"""The id of a run, a worker, a question, a message or a delivery, wherever it stands."""

OF_IDS: Final = re.compile("start:|deliver:")
"""In the keys of records that have ids in them."""


class Begin(msgspec.Struct, frozen=True):
    """Start an agent; what is started can be named by its place among all starts from then on."""

    agent: str
    args: tuple[Any, ...]
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        values = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.options.items())]
        return f"app.start({', '.join([repr(self.agent), *values])})"


class Work(msgspec.Struct, frozen=True):
    """A worker comes, or goes."""

    present: bool

    def __str__(self) -> str:
        return "a worker comes" if self.present else "the worker goes"


class Send(msgspec.Struct, frozen=True):
    """Send the run of a start on: retry or release; or cancel it."""

    verb: str
    start: int

    def __str__(self) -> str:
        return f"app.{self.verb}(run of start {self.start})"


class Reply(msgspec.Struct, frozen=True):
    """Answer a question: the so many-th that was asked (counted round and round), or the open one of a thread."""

    question: int | str
    answer: Any
    by: str | None = None

    def __str__(self) -> str:
        return f"app.resume({self.question!r}, {self.answer!r}, by={self.by!r})"


class Mail(msgspec.Struct, frozen=True):
    """Send a message to a thread."""

    thread_id: str
    message: Any
    key: str | None = None

    def __str__(self) -> str:
        return f"app.send({self.thread_id!r}, {self.message!r}, key={self.key!r})"


class Allow(msgspec.Struct, frozen=True):
    """Set a budget: the one of this name, or that of the run of a start."""

    budget: int | str
    limits: Budget

    def __str__(self) -> str:
        whose = repr(self.budget) if isinstance(self.budget, str) else f"run of start {self.budget}"
        return f"app.set_budget({whose}, {self.limits!r})"


class Redeliver(msgspec.Struct, frozen=True):
    """Send on the so many-th delivery that is dead (counted round and round)."""

    dead: int

    def __str__(self) -> str:
        return f"app.redeliver(dead delivery {self.dead})"


class Fork(msgspec.Struct, frozen=True):
    """Go on from a checkpoint of a thread, on a new one; what is started counts as a start."""

    thread_id: str
    super_step: int | None
    key: str | None = None

    def __str__(self) -> str:
        return f"app.thread({self.thread_id!r}).fork({self.super_step}, {self.key!r})"


class Ask(msgspec.Struct, frozen=True):
    """Read of the run of a start: its info, its result, its history."""

    what: str
    start: int

    def __str__(self) -> str:
        return f"{self.what} of the run of start {self.start}"


class AskThread(msgspec.Struct, frozen=True):
    """Read of a thread: info, state, runs, mailbox, checkpoints (in pages of two)."""

    what: str
    thread_id: str

    def __str__(self) -> str:
        return f"app.thread({self.thread_id!r}).{self.what}()"


class ListRuns(msgspec.Struct, frozen=True):
    """A page of runs; `after` is a start."""

    filters: dict[str, Any]
    after: int | None = None

    def __str__(self) -> str:
        return f"app.runs({self.filters}, after the run of start {self.after})"


class Look(msgspec.Struct, frozen=True):
    """Everything that the public API shows."""

    def __str__(self) -> str:
        return "everything that the app shows"


class ListQuestions(msgspec.Struct, frozen=True):
    """A page of questions."""

    filters: dict[str, Any]

    def __str__(self) -> str:
        return f"app.interrupts({self.filters})"


Act = Begin | Work | Send | Reply | Mail | Allow | Redeliver | Fork | Ask | AskThread | ListRuns | ListQuestions | Look


async def act(program: Sequence[Act], ground: StoreGround) -> list[Any]:
    """Tell the program to an app on a fresh store; the answers, as they are compared."""
    app = app_on(await ground.fresh_url())
    async with app:
        acting = Acting(app)
        try:
            return [await acting.tell(each) for each in program]
        finally:
            await acting.workers.aclose()


class Acting:
    """An app while a program is told to it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.workers = AsyncExitStack()
        self._present = False
        self._handles: list[Handle[Any] | None] = []
        self._names: dict[str, str] = {}

    async def tell(self, act: Act) -> Any:
        """Do one thing and wait until all is quiet; the answer as it is compared."""
        try:
            answer = await self._do(act)
        except (PerdureError, TimeoutError) as raised:
            answer = error(raised)
        if self._present:
            await self._quiet()
        return self._shown(answer)

    async def _do(self, act: Act) -> Any:
        match act:
            case Begin():
                return await self._begin(act)
            case Work():
                return await self._work(act.present)
            case Send():
                handle = self._handle(act.start)
                return handle and await getattr(self.app, act.verb)(handle.run_id)
            case Reply():
                return await self._reply(act)
            case Mail():
                return await self.app.send(act.thread_id, act.message, key=act.key)
            case Allow():
                return await self._allow(act)
            case Redeliver():
                return await self._redeliver(act.dead)
            case Fork():
                return await self._fork(act)
            case ListQuestions():
                return sorted(await self.app.interrupts(**act.filters), key=_in_order)
            case Ask():
                return await self._ask(act)
            case AskThread():
                return await self._ask_thread(act)
            case ListRuns():
                handle = None if act.after is None else self._handle(act.after)
                return await self.app.runs(**act.filters, after=None if handle is None else handle.run_id)
            case Look():
                return await self._everything()
            case _:
                assert_never(act)

    async def _begin(self, act: Begin) -> Any:
        self._handles.append(None)
        handle = await self.app.start(act.agent, *act.args, **act.options)
        self._handles[-1] = handle
        return handle.run_id, handle.thread_id

    async def _fork(self, act: Fork) -> Any:
        self._handles.append(None)
        handle = await self.app.thread(act.thread_id).fork(act.super_step, act.key)
        self._handles[-1] = handle
        return handle.run_id, handle.thread_id

    async def _reply(self, act: Reply) -> Any:
        question = act.question
        if isinstance(question, int):
            asked = sorted(await self.app.interrupts(state=None, limit=1000), key=_in_order)
            if not asked:
                return None
            question = asked[question % len(asked)].id
        return await self.app.resume(question, act.answer, by=act.by)

    async def _allow(self, act: Allow) -> Any:
        name = act.budget
        if isinstance(name, int):
            handle = self._handle(name)
            if handle is None:
                return None
            name = f"run:{handle.run_id}"
        return trading.without_time(await self.app.set_budget(name, act.limits, by="ann"))

    async def _redeliver(self, dead: int) -> Any:
        rows = await trading.handed_over(self.app, state="dead")
        return trading.undrawn(await self.app.redeliver(rows[dead % len(rows)].id)) if rows else None

    async def _work(self, present: bool) -> None:
        if self._present and not present:
            await self.workers.aclose()
        elif present and not self._present:
            await self.workers.enter_async_context(self.app.worker(**WORKER))
        self._present = present

    async def _ask(self, act: Ask) -> Any:
        handle = self._handle(act.start)
        if handle is None:
            return None
        info = await handle.status()
        match act.what:
            case "info":
                return info
            case "history":
                rows = await handle.history()
                return sorted(rows, key=lambda row: (row.super_step, row.key))
            case _:
                ended = info.state in (RunState.COMPLETED, RunState.FAILED, RunState.HELD, RunState.CANCELLED)
                return await handle.result(timeout=PATIENCE_S) if ended else None

    async def _ask_thread(self, act: AskThread) -> Any:
        thread = self.app.thread(act.thread_id)
        if act.what != "checkpoints":
            return await getattr(thread, act.what)()
        rows = await thread.checkpoints(limit=2)
        return [*rows, *(await thread.checkpoints(limit=2, after=rows[-1]) if rows else [])]

    def _handle(self, start: int) -> Handle[Any] | None:
        return self._handles[start] if start < len(self._handles) else None

    async def _quiet(self) -> None:
        """Wait until nobody can go on, and nothing is to be handed over."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                going = [run for run in await self.app.runs(limit=1000) if _goes_on(run)]
                if not going and not await trading.open_deliveries(self.app):
                    return
                if not going:
                    await asyncio.sleep(LOOK_S / 4)
                    continue
                with contextlib.suppress(PerdureError, TimeoutError):
                    await self.app.handle(going[-1].run_id).result(timeout=LOOK_S)

    async def _everything(self) -> dict[str, Any]:
        runs = await self.app.runs(limit=1000)
        threads = [self.app.thread(name) for name in dict.fromkeys(run.thread_id for run in runs)]
        return {
            "runs": runs,
            "infos": [await self.app.run_info(run.run_id) for run in runs],
            "histories": [await self._ask(Ask("history", start)) for start in range(len(self._handles))],
            "threads": [await thread.info() for thread in threads],
            "states": [await thread.state() for thread in threads],
            "checkpoints": [await thread.checkpoints() for thread in threads],
            "mail": [await thread.mailbox() for thread in threads],
            "questions": sorted(await self.app.interrupts(state=None, limit=1000), key=_in_order),
            **await trading.traded(self.app),
        }

    # -- showing ---------------------------------------------------------------------------------------------

    def _shown(self, answer: Any) -> Any:
        """Plain data: ids by the order in which they were first seen here, times only there or not."""
        if isinstance(answer, datetime):
            return "a time"
        if isinstance(answer, str):
            return ID.sub(self._named, answer)
        if isinstance(answer, msgspec.Struct):
            return self._shown({"is": type(answer).__name__} | msgspec.structs.asdict(answer) | {"traceback": "…"})
        if isinstance(answer, CheckpointInfo) and (answer.failed or OF_IDS.search(answer.key)):
            answer = replace(answer, size=0)  # there are ids in it
        if isinstance(answer, InterruptInfo) and answer.name == "budget":
            answer = replace(answer, digest="")  # of a payload that has the run's id in it
        if isinstance(answer, RunInfo) and answer.agent in RACING:
            answer = replace(answer, attempt=0)
        if is_dataclass(answer) and not isinstance(answer, type):
            return self._shown({"is": type(answer).__name__} | asdict(answer))
        if isinstance(answer, dict):
            return {key: self._shown(value) for key, value in answer.items()}
        return [self._shown(each) for each in answer] if isinstance(answer, list | tuple) else answer

    def _named(self, found: re.Match[str]) -> str:
        return self._names.setdefault(found[0], f"{found[1]}:{len(self._names)}")


def _in_order(question: InterruptInfo) -> tuple[tuple[int, str], ...]:
    """Of questions that were asked at once, the order of their runs; which came first is chance."""
    return trading.number_in(question.run_id), trading.number_in(question.id)


def _goes_on(run: RunInfo) -> bool:
    """Whether a worker has it, or may take it, or its time comes soon."""
    if run.state is RunState.WAITING:
        return run.agent in TIMED
    if run.state is RunState.QUEUED:
        return not (run.waiting_for or "").startswith(("earlier runs", "run "))
    return run.state is RunState.RUNNING
