"""The app: a registry of agents, and the client of their runs.

Nothing happens at import: the store is opened when a verb first needs it, once per event loop. `async with app:` (or
`await app.close()`) lets go of it; a process that simply ends loses nothing.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from perdure.client import cancelling, inbox, requests, sending_on
from perdure.client.commands import STORE_DEFAULT
from perdure.client.connection import Client
from perdure.client.consuming import Intake
from perdure.client.correspondence import Correspondence
from perdure.client.grounds import grounds
from perdure.client.handles import RunHandle, ThreadHandle
from perdure.client.ledgers import Ledgers
from perdure.client.serving import run_until_done, serve_until_signalled, worker_of
from perdure.client.unrecorded import warn_in_agents
from perdure.core.budgets import Budget
from perdure.core.records import Outcome, Run, RunState
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.errors import UsageError
from perdure.runtime import starting
from perdure.runtime.agent import Agent, AgentOptions
from perdure.runtime.awaited import awaited, run_view
from perdure.runtime.callables import name_of
from perdure.runtime.frames import outside
from perdure.runtime.handle import Handle
from perdure.runtime.info import RunInfo, plain, run_info
from perdure.runtime.settings import check_name, worker_settings
from perdure.runtime.sinks import Incoming, Sink, Source, check_sink
from perdure.runtime.step import Durability, as_retry, check_durability, timeout_s
from perdure.runtime.worker import Worker
from perdure.store import store_at
from perdure.store.protocol import Store

P = ParamSpec("P")
R = TypeVar("R")


class App(Correspondence, Ledgers):
    """A named set of agents on one store.

    `store` is a URL (`sqlite:///file.db`, `postgresql://user@host/db`, `memory://` for tests), the `Path` of a SQLite
    file, or a `Store`; without it, `$PERDURE_STORE`, else `sqlite:///perdure.db`.
    """

    def __init__(
        self, name: str, *, store: str | PathLike[str] | Store | None = None, durability: Durability = "async",
        billing: str | None = None,
    ) -> None:  # fmt: skip
        self.name = check_name("an app's name", name)
        self.durability = check_durability(durability)
        self.agents: dict[str, Agent[..., Any]] = {}
        self.sinks: dict[str, Sink] = {}
        self.sources: dict[str, Intake] = {}
        self.billing = None if billing is None else check_name("the sink of the bills", billing)
        self.store_url, self._store = store_at(store or os.environ.get("PERDURE_STORE") or STORE_DEFAULT)
        self._said: set[str] = set()
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Client]] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<app {self.name} on {self.store_name}>"

    @property
    def store_name(self) -> str:
        """Where the data lies, without a password."""
        return self._store.url

    def use_store(self, store: str | PathLike[str] | Store) -> Store:
        """Point the app at another store, and return the one before; for whoever has an app from elsewhere, while it is
        not in use."""
        self._let_go_of_closed_loops()
        if self._clients:
            raise UsageError(f"app {self.name} is in use on {self._store.url}; choose the store before that")
        before = self._store
        self.store_url, self._store = store_at(store)
        return before

    # -- agents ----------------------------------------------------------------------------------------------

    @overload
    def agent(self, fn: Callable[P, Awaitable[R]], /) -> Agent[P, R]: ...
    @overload
    def agent(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = ...,
        retry: Retry | int | None = ...,
        timeout: float | str | timedelta | None = ...,
        queue: str = ...,
        durability: Durability | None = ...,
        budget: Budget | None = ...,
    ) -> Callable[[Callable[P, Awaitable[R]]], Agent[P, R]]: ...

    def agent(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        retry: Retry | int | None = None,
        timeout: float | str | timedelta | None = None,
        queue: str = "default",
        durability: Durability | None = None,
        budget: Budget | None = None,
    ) -> Any:
        """Register an async function as an agent: `@app.agent`, or `@app.agent(...)`.

        `retry`: how a failed run is tried again as a whole, with what succeeded kept (default: not at all). `timeout`:
        the limit of one super-step on a worker. `queue`: where its runs wait. `budget`: what each of its runs may use,
        its children included (for all of them together, `app.set_budget("agent:NAME", ...)`).
        """
        if fn is None:
            return lambda fn: self._register(fn, name, retry, timeout, queue, durability, budget)
        return self._register(fn, name, retry, timeout, queue, durability, budget)

    def _register(
        self,
        fn: Callable[..., Any],
        name: str | None,
        retry: Retry | int | None,
        timeout: float | str | timedelta | None,
        queue: str,
        durability: Durability | None,
        budget: Budget | None,
    ) -> Agent[..., Any]:
        if not callable(fn):
            raise UsageError(f"agent() takes an async function, not {shown(fn)}")
        options = AgentOptions(
            name=check_name("an agent's name", name or name_of(fn)),
            queue=check_name("a queue's name", queue),
            retry=Retry(attempts=1) if retry is None else as_retry(retry),
            timeout_s=timeout_s(timeout),
            durability=None if durability is None else check_durability(durability),
            budget=None if budget is None else starting.checked_budget(budget),
        )
        if options.name in self.agents:
            raise UsageError(f"app {self.name} has an agent {options.name!r} already; give this one another name=")
        agent: Agent[..., Any] = Agent(fn, options)
        self.agents[options.name] = agent
        return agent

    def find_agent(self, agent: Agent[..., Any] | str) -> Agent[..., Any]:
        """The registered agent, by itself or by name; `UnknownAgent` otherwise."""
        return starting.registered(
            agent, self.agents, f"on app {self.name}", "Decorate it with @app.agent, and import its module before use"
        )

    # -- sinks and sources -----------------------------------------------------------------------------------

    def sink(self, name: str, sink: Sink) -> Sink:
        """Register where deliveries go: workers of this app hand over what `perdure.deliver(name, ...)` has put into
        the outbox. Before they start."""
        check_name("a sink's name", name)
        check_sink(name, sink)
        if name in self.sinks:
            raise UsageError(f"app {self.name} has a sink {name!r} already; give this one another name")
        self.sinks[name] = sink
        return sink

    def source(
        self,
        name: str,
        source: Source,
        *,
        start: Agent[..., Any] | str | None = None,
        send_to: Callable[[Incoming], str] | None = None,
        args: Callable[[Incoming], tuple[Any, ...]] | None = None,
        thread_id: Callable[[Incoming], str | None] | None = None,
        tenant: Callable[[Incoming], str | None] | None = None,
    ) -> Source:
        """Register where work comes from: workers of this app take it. The broker's id of what comes is its key, and it
        is acknowledged once what it starts is on disk.

        `start`: each starts a run of this agent, with what came as its argument, or with `args` of it; `thread_id` and
        `tenant`, functions too, say where. `send_to`: or each is a message to the thread that this names.
        """
        check_name("a source's name", name)
        if name in self.sources:
            raise UsageError(f"app {self.name} has a source {name!r} already; give this one another name")
        agent = None if start is None else self.find_agent(start)
        self.sources[name] = Intake(name, source, agent, send_to, args, thread_id, tenant)
        return source

    # -- runs ------------------------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent[..., Any] | str,
        /,
        *args: Any,
        thread_id: str | None = None,
        key: str | None = None,
        if_busy: str | None = None,
        queue: str | None = None,
        priority: int = 0,
        delay: float | str | timedelta = 0,
        deadline: float | str | timedelta | datetime | None = None,
        tenant: str | None = None,
        tags: Iterable[str] = (),
        budget: Budget | None = None,
        **kwargs: Any,
    ) -> Handle[Any]:
        """Put a run on disk and return its handle (G1).

        `thread_id`: the thread it belongs to, by default one of its own. `key`: the same key gives the same run, and
        with other input a `StartMismatch`. `priority`: higher is claimed first. `delay`: not before then, on the
        store's clock. `deadline`: it fails if it has not ended by then (from now, or an aware datetime). `budget`: what
        it may use, its children included.

        `if_busy`: on a thread with an unfinished run, "enqueue" behind it, "reject" with `ThreadBusy`, "join" it,
        "interrupt" it (cancel it, and go on from what it has saved) or "rollback" (and take that back). By default,
        enqueue; but a run with an open question is not to be passed over unsaid, so that is a `ThreadBusy` naming it.
        """
        warn_in_agents("start", self._said)
        found = self.find_agent(agent)
        client = await self._client()
        request = await starting.start_request(
            found, client.ids, args, kwargs, thread_id=thread_id, key=key, if_busy=if_busy, queue=queue,
            priority=priority, delay=delay, deadline=deadline, tenant=tenant, tags=tags, budget=budget,
            billing=self._billing(),
        )  # fmt: skip
        outcome = await client.start(request)
        started = starting.started(outcome, request, asked=await inbox.asked_by(client.store, outcome))
        return RunHandle(self, started.run, started.thread_id)

    def _billing(self) -> str | None:
        """The sink of the bills; one that nobody has registered would keep them for ever."""
        if self.billing is not None and self.billing not in self.sinks:
            raise UsageError(
                f"the bills of app {self.name} go to sink {self.billing!r}, which is not registered: "
                f"app.sink({self.billing!r}, ...)"
            )
        return self.billing

    def handle(self, run_id: str) -> Handle[Any]:
        """The handle of a run by its id, without looking whether there is one."""
        return RunHandle(self, requests.run_number(run_id), "")

    async def run_info(self, run_id: str) -> RunInfo:
        """One run, with its result or error if it has ended."""
        return await self._info(await self._run(await self._client(), run_id))

    async def runs(
        self,
        *,
        state: str | None = None,
        agent: Agent[..., Any] | str | None = None,
        thread_id: str | None = None,
        tenant: str | None = None,
        tags: Iterable[str] = (),
        limit: int = 100,
        after: str | None = None,
    ) -> list[RunInfo]:
        """A page of runs, newest first, without results; `after` is the last run id of the page before."""
        where = requests.run_filter(
            state=state, agent=agent, thread_id=thread_id, tenant=tenant, tags=tags, limit=limit, after=after
        )
        client = await self._client()
        now_us = await client.store.now_us()
        found = await client.store.list_runs(where)
        waits = await awaited(client.store, found)
        return [run_info(run, None, plain, now_us=now_us, awaited=waits.get(run.id)) for run in found]

    def thread(self, thread_id: str) -> ThreadHandle:
        """A thread by its id."""
        return ThreadHandle(self, starting.checked_id("a thread id", thread_id))

    async def cancel(self, run_id: str, *, reason: str | None = None) -> RunState:
        """Cancel a run; see `Handle.cancel`."""
        return await cancelling.cancel(await self._client(), requests.run_number(run_id), reason)

    async def retry(self, run_id: str, *, undo: bool = False) -> RunInfo:
        """Send a failed or cancelled run on: the steps whose failure ended it run again, recorded results stay. One
        whose effects were undone is a `Conflict`. Its deadline, if it had one, is dropped: it would have come before
        the run could do anything.

        With `undo` only the undos of its effects are tried again, those that failed and those that never ran; it ends
        as it had ended.
        """
        client = await self._client()
        return await self._info(await sending_on.retry(client, await self._run(client, run_id), undo=undo))

    async def release(self, run_id: str) -> RunInfo:
        """Send a held run on; `Conflict` for one that is not held."""
        client = await self._client()
        return await self._info(await sending_on.release(client, await self._run(client, run_id)))

    # -- working ---------------------------------------------------------------------------------------------

    def worker(self, **settings: Any) -> AbstractAsyncContextManager[Worker]:
        """Execute runs until the block ends, then drain: `async with app.worker(concurrency=100, queues=["default"]):`

        Settings: `name`, `deployment`, `concurrency`, `queues`, `lease_s`, `poll_s`, `grace_s`, `clean_up_s`,
        `recoveries_max`, `stall_limit_s`; see `docs/reference/settings.md`.
        """
        return worker_of(self, worker_settings(**settings))

    def serve(self, **settings: Any) -> None:
        """Execute runs until SIGTERM or SIGINT; the first drains, the second hands back at once. Blocks."""
        serve_until_signalled(self, worker_settings(**settings))

    def run(self, agent: Agent[P, R] | str, /, *args: Any, thread_id: str | None = None, **kwargs: Any) -> Any:
        """Start a run (or join the thread's unfinished one), work until it ends, and return its result. Blocks.

        Called again with the same `thread_id` after a crash, it goes on where the run was. When the run waits for
        something, a warning of the `perdure` logger (to stderr, where nobody has set up logging) says once for what,
        and which command answers a question.
        """
        return run_until_done(self, self.find_agent(agent), args, thread_id, kwargs)

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self._client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of this loop's store; a later verb opens it again."""
        opening = self._clients.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()

    async def _client(self) -> Client:
        """This loop's client, opened by the first who asks."""
        loop = asyncio.get_running_loop()
        opening = self._clients.get(loop)
        if opening is None:
            self._let_go_of_closed_loops()
            with outside():  # an agent may be the first who asks; what is opened is for all
                opening = self._clients[loop] = asyncio.ensure_future(self._open())
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done():
                self._clients.pop(loop, None)
            raise

    def _let_go_of_closed_loops(self) -> None:
        """`asyncio.run(app.start(…))` leaves an open store each time, and a loop that nobody can close it on."""
        for reference in self._clients.keyrefs():
            loop = reference()
            if loop is None or not loop.is_closed():
                continue
            opening = self._clients.pop(loop, None)
            if opening is not None and opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result().abandon()

    async def _open(self) -> Client:
        store = self._store.clone()
        if (here := grounds()) is not None:
            here.admit(self.name, store)
        client = Client(store)
        await client.open()
        return client

    async def _info(self, run: Run, outcome: Outcome | None = None) -> RunInfo:
        """A run's view, as its agent declares its result where that is registered here."""
        agent = self.agents.get(run.agent)
        client = await self._client()
        return await run_view(client.store, run, plain if agent is None else agent.codec.decode, outcome=outcome)

    async def _run(self, client: Client, run_id: str) -> Run:
        """The run's row; `NotFound` if there is none."""
        found = await client.store.get_runs([requests.run_number(run_id)])
        if not found:
            raise requests.no_run(run_id, client.store.url)
        return found[0]
