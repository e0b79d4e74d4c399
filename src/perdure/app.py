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
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from perdure.client import requests
from perdure.client.connection import Client
from perdure.client.grounds import grounds
from perdure.client.handles import Handle, ThreadHandle
from perdure.client.info import RunInfo, plain, run_info
from perdure.client.serving import run_until_done, serve_until_signalled, worker_of
from perdure.core.failures import decode_error
from perdure.core.records import Outcome, Run, RunState, run_id
from perdure.core.retry import Retry
from perdure.core.states import TERMINAL
from perdure.errors import Conflict, UnknownAgent, UsageError
from perdure.runtime.agent import Agent, AgentOptions
from perdure.runtime.callables import name_of
from perdure.runtime.frames import outside
from perdure.runtime.payloads import load_payload
from perdure.runtime.settings import check_name, worker_settings
from perdure.runtime.step import Durability, as_retry, check_durability, timeout_s
from perdure.runtime.worker import Worker
from perdure.store import open_url
from perdure.store.protocol import Store

P = ParamSpec("P")
R = TypeVar("R")

STORE_DEFAULT = "sqlite:///perdure.db"


class App:
    """A named set of agents on one store.

    `store` is a URL (`sqlite:///file.db`, `postgresql://user@host/db`, `memory://` for tests) or a `Store`; without it,
    `$PERDURE_STORE`, else `sqlite:///perdure.db`.
    """

    def __init__(self, name: str, *, store: str | Store | None = None, durability: Durability = "async") -> None:
        self.name = check_name("an app's name", name)
        where = store or os.environ.get("PERDURE_STORE") or STORE_DEFAULT
        self.durability = check_durability(durability)
        self.agents: dict[str, Agent[..., Any]] = {}
        self.store_url = where if isinstance(where, str) else where.url
        self._store = open_url(where) if isinstance(where, str) else where
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Client]] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<app {self.name} on {self.store_name}>"

    @property
    def store_name(self) -> str:
        """Where the data lies, without a password."""
        return self._store.url

    def use_store(self, store: str | Store) -> Store:
        """Point the app at another store, and return the one before; for whoever has an app from elsewhere, while it is
        not in use."""
        self._let_go_of_closed_loops()
        if self._clients:
            raise UsageError(f"app {self.name} is in use on {self._store.url}; choose the store before that")
        before = self._store
        self.store_url = store if isinstance(store, str) else store.url
        self._store = open_url(store) if isinstance(store, str) else store
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
    ) -> Any:
        """Register an async function as an agent: `@app.agent`, or `@app.agent(...)`.

        `retry`: how a failed run is tried again as a whole, with what succeeded kept (default: not at all). `timeout`:
        the limit of one super-step on a worker. `queue`: where its runs wait.
        """
        if fn is None:
            return lambda fn: self._register(fn, name, retry, timeout, queue, durability)
        return self._register(fn, name, retry, timeout, queue, durability)

    def _register(
        self,
        fn: Callable[..., Any],
        name: str | None,
        retry: Retry | int | None,
        timeout: float | str | timedelta | None,
        queue: str,
        durability: Durability | None,
    ) -> Agent[..., Any]:
        if not callable(fn):
            raise UsageError(f"agent() takes an async function, not {fn!r}")
        options = AgentOptions(
            name=check_name("an agent's name", name or name_of(fn)),
            queue=check_name("a queue's name", queue),
            retry=Retry(attempts=1) if retry is None else as_retry(retry),
            timeout_s=timeout_s(timeout),
            durability=None if durability is None else check_durability(durability),
        )
        if options.name in self.agents:
            raise UsageError(f"app {self.name} has an agent {options.name!r} already; give this one another name=")
        agent: Agent[..., Any] = Agent(fn, options)
        self.agents[options.name] = agent
        return agent

    def find_agent(self, agent: Agent[..., Any] | str) -> Agent[..., Any]:
        """The registered agent, by itself or by name; `UnknownAgent` otherwise."""
        name = agent.name if isinstance(agent, Agent) else agent
        if not isinstance(name, str) or name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise UnknownAgent(
                f"no agent {name!r} on app {self.name}; registered are: {known}. Decorate it with @app.agent, "
                "and import its module before use",
                agent=name,
            )
        return self.agents[name]

    # -- runs ------------------------------------------------------------------------------------------------

    async def start(
        self,
        agent: Agent[..., Any] | str,
        /,
        *args: Any,
        thread_id: str | None = None,
        key: str | None = None,
        if_busy: str = "enqueue",
        queue: str | None = None,
        priority: int = 0,
        delay: float | str | timedelta = 0,
        tenant: str | None = None,
        tags: Iterable[str] = (),
        **kwargs: Any,
    ) -> Handle[Any]:
        """Put a run on disk and return its handle (G1).

        `thread_id`: the thread it belongs to, by default one of its own. `key`: the same key gives the same run, and
        with other input a `StartMismatch`. `if_busy`: on a thread with an unfinished run "enqueue" behind it, "reject"
        with `ThreadBusy`, or "join" it. `priority`: higher is claimed first. `delay`: not before then, on the store's
        clock.
        """
        found = self.find_agent(agent)
        client = await self._client()
        request = await requests.start_request(
            found, client.ids, args, kwargs, thread_id=thread_id, key=key, if_busy=if_busy, queue=queue,
            priority=priority, delay=delay, tenant=tenant, tags=tags,
        )  # fmt: skip
        started = requests.started(await client.start(request), request)
        return Handle(self, started.run, started.thread_id)

    def handle(self, run_id: str) -> Handle[Any]:
        """The handle of a run by its id, without looking whether there is one."""
        return Handle(self, requests.run_number(run_id), "")

    async def run_info(self, run_id: str) -> RunInfo:
        """One run, with its result or error if it has ended."""
        return await self._info(await self._run(await self._client(), run_id))

    async def runs(
        self,
        *,
        state: str | None = None,
        agent: str | None = None,
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
        return [run_info(run, None, plain, now_us=now_us) for run in await client.store.list_runs(where)]

    def thread(self, thread_id: str) -> ThreadHandle:
        """A thread by its id."""
        return ThreadHandle(self, requests.checked_id("a thread id", thread_id))

    async def retry(self, run_id: str) -> RunInfo:
        """Send a failed or cancelled run on: the steps whose failure ended it run again, recorded results stay."""
        client = await self._client()
        run = await self._run(client, run_id)
        sent_on = await client.store.retry(run.id, await self._failed_keys(client, run))
        if sent_on is not None and sent_on.state in (RunState.FAILED, RunState.CANCELLED):
            raise await self._gone_on(client, sent_on)
        return await self._sent_on(client, run_id, sent_on, "failed or cancelled", "retry")

    async def release(self, run_id: str) -> RunInfo:
        """Send a held run on."""
        client = await self._client()
        return await self._sent_on(
            client, run_id, await client.store.release(requests.run_number(run_id)), "held", "release"
        )

    # -- working ---------------------------------------------------------------------------------------------

    def worker(self, **settings: Any) -> AbstractAsyncContextManager[Worker]:
        """Execute runs until the block ends, then drain: `async with app.worker(concurrency=100, queues=["default"]):`

        Settings: `name`, `deployment`, `concurrency`, `queues`, `lease_s`, `poll_s`, `grace_s`, `recoveries_max`,
        `stall_limit_s`; see `docs/reference/settings.md`.
        """
        return worker_of(self, worker_settings(**settings))

    def serve(self, **settings: Any) -> None:
        """Execute runs until SIGTERM or SIGINT; the first drains, the second hands back at once. Blocks."""
        serve_until_signalled(self, worker_settings(**settings))

    def run(self, agent: Agent[P, R] | str, /, *args: Any, thread_id: str | None = None, **kwargs: Any) -> Any:
        """Start a run (or join the thread's unfinished one), work until it ends, and return its result. Blocks.

        Called again with the same `thread_id` after a crash, it goes on where the run was.
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
        """A run's view with its outcome, or with what it waits for."""
        client = await self._client()
        agent = self.agents.get(run.agent)
        decode = plain if agent is None else agent.codec.decode
        if run.state in TERMINAL:
            outcome = outcome or next(iter(await client.store.outcomes([run.id])), None)
            if outcome is not None:
                payload = await load_payload(client.store, run.thread, outcome.payload)
                outcome = Outcome(run.id, outcome.failed, payload)
            return run_info(run, outcome, decode)
        head: int | None = None
        if run.state is RunState.QUEUED and not run.ready:
            thread = await client.store.get_thread(run.thread_id)
            head = None if thread is None else thread.head
        return run_info(run, None, decode, head=head, now_us=await client.store.now_us())

    async def _run(self, client: Client, run_id: str) -> Run:
        """The run's row; `NotFound` if there is none."""
        found = await client.store.get_runs([requests.run_number(run_id)])
        if not found:
            raise requests.no_run(run_id, client.store.url)
        return found[0]

    async def _gone_on(self, client: Client, run: Run) -> Conflict:
        """Why a run was not sent on: its state is one that later runs of the thread have built upon, or may."""
        thread = await client.store.get_thread(run.thread_id)
        name = run_id(run.id)
        undo = "going on from there would undo the state of later runs"
        if thread is not None and thread.snapshot_run == run.id and thread.head is not None:
            why = f"{run_id(thread.head)} has begun on thread {run.thread_id!r} since {name} ended in super-step"
            remedy = "wait for its end, and try again if it fails"
        else:
            why = f"thread {run.thread_id!r} has gone on since {name} ended in super-step"
            remedy = "start a new run on the thread instead"
        return Conflict(f"{why} {run.super_step}; {undo}: {remedy}", run_id=name, thread_id=run.thread_id)

    async def _failed_keys(self, client: Client, run: Run) -> tuple[str, ...]:
        """The steps whose failure ended the run."""
        for outcome in await client.store.outcomes([run.id]):
            if outcome.failed:
                return decode_error(await load_payload(client.store, run.thread, outcome.payload)).failed_keys
        return ()

    async def _sent_on(self, client: Client, run_id: str, run: Run | None, wanted: str, verb: str) -> RunInfo:
        if run is None:
            raise requests.no_run(run_id, client.store.url)
        if run.state is not RunState.QUEUED:
            raise Conflict(
                f"run {run_id} is {run.state}; {verb} is for runs that are {wanted}", run_id=run_id, state=run.state
            )
        return await self._info(run)
