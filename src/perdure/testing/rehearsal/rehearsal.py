"""The stage: an app's agents on workers of a simulated world."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar, cast

from msgspec import structs

from perdure.app import App
from perdure.client.budgets import BudgetInfo
from perdure.client.deliveries import DeliveryInfo
from perdure.client.effects import EffectInfo
from perdure.client.inbox import InterruptInfo
from perdure.client.usage import UsageInfo
from perdure.core.budgets import Budget
from perdure.core.durations import seconds
from perdure.core.keys import meant
from perdure.core.limits import LIST_ROWS_MAX, RECOVERIES_MAX
from perdure.core.records import RunState, run_id, worker_id
from perdure.errors import UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.frames import BesideFrame, StepFrame
from perdure.runtime.handle import Handle
from perdure.runtime.info import moment
from perdure.runtime.settings import WorkerSettings, worker_settings
from perdure.runtime.worker import Worker
from perdure.store.memory import MemoryStore
from perdure.store.protocol import Store
from perdure.testing.answers import answered
from perdure.testing.rehearsal.alarm import Alarm
from perdure.testing.rehearsal.backstage import Crossroads, Nobody, StagePools
from perdure.testing.rehearsal.beside import Beside, named
from perdure.testing.rehearsal.books import Books, Connection
from perdure.testing.rehearsal.calls import Calls, Waited
from perdure.testing.rehearsal.cast import Cast, check_apps, check_deployment, own_agents
from perdure.testing.rehearsal.faults import Fault, Moment, checked, idle, striking
from perdure.testing.rehearsal.handing import HandedOver, Handing, not_once, open_text, still_open
from perdure.testing.rehearsal.people import People, Promise, check_question
from perdure.testing.rehearsal.standing import Circle, NeverEnded, Standing, lasting
from perdure.testing.simulation.loop import VirtualLoop
from perdure.testing.simulation.wire import Database, Request
from perdure.testing.simulation.world import Process, Stuck, World

T = TypeVar("T")

LEASE_S: Final = 30 * 365 * 86_400.0
"""Nobody renews here: a death is told at once, and no rehearsal lasts longer."""
POLL_S: Final = 30 * 86_400.0
"""Hints are never lost here, and the alarm tells of what becomes due by itself: nobody need look."""
SPAWN_S: Final = 0.1
"""After how long a new worker takes the place of one that died."""
WITHIN: Final = "100d"


@dataclass(frozen=True, slots=True)
class Execution:
    """A step's body that began, or what a fault put in its place."""

    step: str
    key: str
    run_id: str
    super_step: int
    attempt: int
    worker: str
    at: datetime


@contextmanager
def rehearse(
    app: App, *faults: Fault, apps: Iterable[App] = (), deployment: str = "rehearsal", seed: int = 0
) -> Iterator[Rehearsal]:
    """Put the app's agents on a stage of their own until the block ends: no store, no time and no process of the real
    world. `apps`: others that its agents or scenes use, on the same stage. `deployment`: the version of the worker's
    code. `seed`: other interleavings of what happens at the same moment."""
    others = check_apps(app, apps)
    if type(seed) is not int:
        raise UsageError(f"seed={seed!r} is not a whole number, such as seed=1")
    stage = Rehearsal(
        app, tuple(map(replace, checked(faults))), deployment=check_deployment(deployment), seed=seed, apps=others
    )
    state = random.getstate()
    random.seed(seed)
    try:
        with stage._set():
            yield stage
    finally:
        random.setstate(state)


@dataclass
class Rehearsal:
    """The stage, while it is set. Make it by `rehearse`."""

    app: App
    faults: tuple[Fault, ...]
    deployment: str
    seed: int
    apps: tuple[App, ...] = ()
    executions: list[Execution] = field(default_factory=list)
    """Every body that began, in order."""
    waits: list[Waited] = field(default_factory=list)
    """Every wait that began, in order."""
    handed_over: list[HandedOver] = field(default_factory=list)
    """What sinks have got, in order."""
    crashes: int = 0
    """Worker processes that died."""
    _leaving: set[Process] = field(default_factory=set, repr=False)
    """Workers that have been replaced."""
    _passing: bool = field(default=False, repr=False)
    _over: bool = field(default=False, repr=False)

    # -- the play --------------------------------------------------------------------------------------------

    def run(
        self, agent: Agent[..., Any] | str, /, *args: Any, within: float | str | timedelta = WITHIN, **kwargs: Any
    ) -> Any:
        """Start a run and return its result. Raises what `Handle.result` raises, and `NeverEnded` after `within`."""

        async def scene() -> Any:
            handle: Handle[Any] = await self.app.start(agent, *args, **kwargs)
            return await handle.result()

        return self.play(scene, within=within)

    def start(self, agent: Agent[..., Any] | str, /, *args: Any, **options: Any) -> Handle[Any]:
        """Start a run, and do not wait for it: `play(handle.result)` does. Takes what `app.start` takes."""
        return self.play(functools.partial(self.app.start, agent, *args, **options))

    def play(self, scene: Callable[[], Coroutine[Any, Any, T]], *, within: float | str | timedelta = WITHIN) -> T:
        """Call this async function as a client of the app would, in virtual time, and return what it returns:
        `await app.start(...)`, `await handle.result()`, `await asyncio.sleep(3600)`."""
        limit_s = seconds(within, what="a duration for within=")
        self._check_time_can_pass("play")
        given: object = scene
        if not callable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise UsageError(f"play takes an async function, such as play(scene), and calls it itself; not {given!r}")
        client = self._world.process(f"client {len(self._world.processes)}")
        task = client.loops[0].create_task(self._act(scene))
        try:
            ended = self._pass(task.done, limit_s)
        finally:
            client.kill()
        if not ended:
            raise NeverEnded(f"not over after {lasting(limit_s)} of virtual time; {self._standing()}")
        result: T = task.result()
        return result

    def advance(self, by: float | str | timedelta) -> None:
        """Let virtual time pass."""
        amount_s = seconds(by)
        self._check_time_can_pass("advance")
        self._pass(lambda: False, amount_s)

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return moment(self._world.wall_us())

    def hand_over(self, *, within: float | str | timedelta = WITHIN) -> list[HandedOver]:
        """Let time pass until all that runs have handed over is delivered or given up; returns what sinks have got, in
        order. Raises `NeverEnded` after `within`."""
        limit_s = seconds(within, what="a duration for within=")
        self._check_time_can_pass("hand_over")
        outbox = self._root._data.outbox
        if not self._pass(lambda: not still_open(outbox), limit_s):
            raise NeverEnded(
                f"not all is handed over after {lasting(limit_s)} of virtual time: {open_text(still_open(outbox))}"
            )
        return list(self.handed_over)

    # -- what people do --------------------------------------------------------------------------------------

    def answer(self, question: str, answer: Any, *, by: str | None = None, after: float | str | timedelta = 0) -> None:
        """Answer a question: the one of this id (`i7`), or all of this name (or key) that are open now, and whatever is
        asked by this name from now on. `answer`: a value, or a function of the `InterruptInfo`, `async` or not. `by`:
        who answers. `after`: how long that takes; who comes too late changes nothing. What nobody answers expires, or
        waits for ever."""
        self._check_time_can_pass("answer")
        given = self._people.promise(Promise(check_question(question), answer, by, seconds(after)))
        if not seconds(after):
            self._pass(lambda: all(task.done() for task in given), seconds(WITHIN))

    def send(self, thread_id: str, message: Any) -> str:
        """Put a message into a thread's mailbox, as `app.send` does; returns its id."""
        return self.play(functools.partial(self.app.send, thread_id, message))

    def cancel(self, run: Handle[Any] | str, reason: str | None = None) -> RunState:
        """Cancel a run, by its handle or its id, as `handle.cancel` does."""
        name = run.run_id if isinstance(run, Handle) else run
        return self.play(functools.partial(self.app.cancel, name, reason=reason))

    def set_budget(self, name: str, budget: Budget, *, by: str | None = None) -> BudgetInfo:
        """Set a budget, as `app.set_budget` does."""
        return self.play(functools.partial(self.app.set_budget, name, budget, by=by))

    # -- what happens to it ----------------------------------------------------------------------------------

    def crash(self) -> None:
        """End the worker's process now; another one takes its place."""
        self._check_set("crash")
        self._crash(self._worker)

    def deploy(self, deployment: str, agents: Mapping[str, Agent[..., Any]] | App | None = None) -> None:
        """Let a worker with this version's code take the place of the present one: other agents under the same names,
        or the same. From now on the old one claims nothing and is drained. Runs stay pinned to the version they began
        under; an app given here is on the stage from now on."""
        self._check_set("deploy")
        check_deployment(deployment)
        if agents is not None:
            self._cast.recast(agents)
        self.deployment = deployment
        self._leaving.add(self._worker)
        self._dismiss(self._worker)
        self._hire()

    # -- what has happened -----------------------------------------------------------------------------------

    def count(self, step: str) -> int:
        """How often a body of this step (by name, or by key) began; 0 if none has. With "sink:orders", or the key of a
        delivery: how often a worker began to hand it over."""
        if not isinstance(step, str) or not step:
            raise UsageError(f'count takes the name or the key of a step, such as "search", not {step!r}')
        return sum(meant((step,), key=key, name=name) is not None for name, key in self._begun())

    def keys(self) -> list[str]:
        """The keys of all bodies that began, in order, as they began."""
        return [each.key for each in self.executions]

    def questions(self, state: str | None = None) -> list[InterruptInfo]:
        """The questions that agents have asked, in order, with their answers; only those in this state, if one is
        given: `open`, `answered`, `expired`, `withdrawn`."""
        return self.play(functools.partial(self.app.interrupts, state=state, limit=LIST_ROWS_MAX))

    def effects(self, state: str | None = None, *, name: str | None = None) -> list[EffectInfo]:
        """What agents have done to the outside world, and what became of it, as `app.effects` lists it; only those in
        this state (`done`, `unknown`, `undone` ...), or of this name, if one is given."""
        return self.play(functools.partial(self.app.effects, state=state, name=name, limit=LIST_ROWS_MAX))

    def expect_undo_failed(self, effect: str) -> None:
        """Say of an effect, by its name or its key, that its undo is to be given up; else one that is fails the test at
        its end."""
        self._check_set("say what is expected")
        self._beside.expect(effect)

    def deliveries(self, state: str | None = None, *, sink: str | None = None) -> list[DeliveryInfo]:
        """What runs have handed over, with what became of it, as `app.deliveries` lists it; only what is in this state
        (`queued`, `delivering`, `delivered`, `dead`), or for this sink, if one is given."""
        return self.play(functools.partial(self.app.deliveries, state=state, sink=sink, limit=LIST_ROWS_MAX))

    def assert_delivered_once(self, sink: str | None = None, *, by_key: bool = False) -> None:
        """Let time pass until all is delivered or given up; an `AssertionError` unless something was handed over (to
        this sink), and all of it has arrived, each delivery once. With `by_key` the other side knows keys, so that the
        same delivery again is nothing new to it."""
        if sink is not None and sink not in self._cast.sinks:
            known = ", ".join(map(repr, sorted(self._cast.sinks))) or "none"
            raise UsageError(f"no app on this stage has a sink {sink!r}; registered are: {known}")
        self.hand_over()
        if wrong := not_once(self._root._data.outbox, self.handed_over, sink, by_key=by_key):
            raise AssertionError("; ".join(wrong))

    def usage(self, by: str = "run", **filters: Any) -> list[UsageInfo]:
        """Sums of what was metered, as `app.usage` has them."""
        return self.play(functools.partial(self.app.usage, by, **filters))

    def budgets(self, prefix: str | None = None) -> list[BudgetInfo]:
        """The budgets that there are, with what is spent of them, as `app.budgets` lists them."""
        return self.play(functools.partial(self.app.budgets, prefix, limit=LIST_ROWS_MAX))

    @property
    def database(self) -> Connection:
        """A connection to the tables of the agents' transactions: to make them before a run, and to look at them after
        it. It sees what is committed."""
        self._check_set("use its database")
        return self._books.view

    # -- inside ----------------------------------------------------------------------------------------------

    @contextmanager
    def _set(self) -> Iterator[None]:
        own_agents(self.app)
        self._world = World(self.seed)
        self._root = MemoryStore(now_us=self._world.wall_us)
        self._database = Database(self._world, self._root, witness=cast(Any, self))
        self._people = People(self.app, self._world, self._root._data, self._act)
        self._books = Books()
        self._handing = Handing(self.faults, self.handed_over, now=lambda: self.now, die=self._die_here)
        self._beside = Beside(self.faults, self._root._data)
        self._calls = Calls(self.faults, self.waits, self._world, self._people.asked, self._beside)
        self._alarm = Alarm(self._database.loop, self._root._data)
        opening = self._database.loop.create_task(self._root.open())
        self._world.run(opening.done, deadline_s=1.0)
        with Cast(self.app, self.apps, self._store_of) as self._cast:
            self._cast.enter(self.app, *self.apps)
            try:
                self._hire()
                yield
                self._check_faults()
            finally:
                self._over = True
                self._world.close()
                self._books.close()

    def _store_of(self, app: App) -> Store:
        return cast(Store, Crossroads(app.name, self._database, self._books, self._leaving, self._dies_before))

    def _check_set(self, verb: str) -> None:
        if self._over:
            raise UsageError(f"this rehearsal is over; {verb} inside of its `with` block")

    def _check_time_can_pass(self, verb: str) -> None:
        self._check_set(verb)
        if self._passing:
            raise UsageError(
                f"{verb} was called in a scene or an agent of this stage, where time is passing already: there, "
                "`await app.start(...)`, `await handle.result()` and `await asyncio.sleep(...)`"
            )

    def _pass(self, until: Callable[[], bool], limit_s: float) -> bool:
        """Let everybody go on until the condition holds (True), or for so long (False)."""
        circle = Circle(self._world, self._database, self.executions)

        def over() -> bool:
            circle.look()
            self._people.raise_failure()
            return until()

        self._passing = True
        try:
            return self._world.run(over, deadline_s=limit_s)
        except (NeverEnded, Stuck) as stuck:
            raise NeverEnded(f"{stuck}; {self._standing()}") from None
        finally:
            self._passing = False

    def _hire(self) -> None:
        """Start a worker process."""
        agents = self._cast.agents
        name = f"worker {len(self._world.processes)}"
        self._settings = settings = worker_settings(
            name=name, deployment=self.deployment, lease_s=LEASE_S, poll_s=POLL_S,
            queues=sorted({agent.settings.queue for agent in agents.values()}), grace_s=60.0,
        )  # fmt: skip
        process = self._world.process(name)
        self._worker: Process = process
        process.around_body = functools.partial(self._around_body, process)
        process.start(self._work(process, settings, agents))

    def _dismiss(self, process: Process) -> None:
        if process.worker is not None and process.alive:
            process.loops[0].call_soon_threadsafe(process.worker.stop)

    async def _work(self, process: Process, settings: WorkerSettings, agents: Mapping[str, Agent[..., Any]]) -> None:
        await self._open_apps()
        client = await self.app._client()
        process.worker = Worker(
            client.store, agents, settings=settings, durability=self.app.durability, on_ended=client.ended,
            surroundings=replace(process.surroundings(beside=Nobody), pools=StagePools),
            sinks=self._handing.sinks(self._cast.sinks), billing=self._cast.billing,
        )  # fmt: skip
        if process in self._leaving:
            self._dismiss(process)
        async with process.worker:
            await process.worker.stopped()
        await self._close_apps()

    async def _act(self, scene: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._open_apps()
        try:
            acting = scene()
            if not inspect.isawaitable(acting):
                raise UsageError(
                    f"play takes an async function; {scene!r} returned {acting!r}, which cannot be awaited"
                )
            return await acting
        finally:
            await self._close_apps()

    async def _open_apps(self) -> None:
        for app in self._cast.apps:
            (await app._client()).poll_s = POLL_S

    async def _close_apps(self) -> None:
        for app in self._cast.apps:
            await app.close()

    async def _around_body(self, process: Process, at: StepFrame, body: Callable[[], Awaitable[Any]]) -> Any:
        self._begins(at, body)
        for fault in self._striking(Moment.BEFORE, at):
            await asyncio.sleep(fault.delay_s)
            if fault.crashes:
                await self._die(process)
        instead = self._striking(Moment.INSTEAD, at)
        value = await self._answer(instead[0], body) if instead else await body()
        if any(fault.crashes for fault in self._striking(Moment.IN, at)):
            await self._die(process)
        return value

    def _begins(self, at: StepFrame, body: Callable[[], Awaitable[Any]]) -> None:
        super_step = at.super_step
        run, number, worker = super_step.claimed.run, super_step.number, worker_id(super_step.host.worker)
        if isinstance(at, BesideFrame):
            self._beside.begins(at, body)
        else:
            self._calls.names[run, number, at.key] = at.name
        self.executions.append(Execution(*named(at), run_id(run), number, at.attempt, worker, self.now))

    def _striking(self, moment: Moment, at: StepFrame) -> list[Fault]:
        struck = striking(self.faults, moment, *named(at))
        if isinstance(at, BesideFrame):
            self._beside.struck(at, struck)
        return struck

    async def _answer(self, fault: Fault, body: Callable[[], Awaitable[Any]]) -> Any:
        assert isinstance(body, functools.partial)
        args, kwargs = body.args[-2:]
        return await answered(fault.answer, args, kwargs)

    async def saw(self, request: Request, answer: Any) -> None:
        """The database has done this (`Witness`)."""
        self._alarm.set()
        struck = self._calls.written(request, answer)
        if request.verb == "settle_deliveries" and not isinstance(answer, Exception):
            struck = self._handing.settled(self._root._data.outbox, request.args[1])
        if struck:
            self._crash(request.caller.process)

    def _dies_before(self, request: Request) -> bool:
        """A process asks the database for this: whether it dies before that is done."""
        dies = self._calls.coming(request)
        if dies:
            self._crash(request.caller.process)
        return dies

    async def _die_here(self) -> None:
        """The process that this runs in ends."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop) and isinstance(loop.owner, Process)
        await self._die(loop.owner)

    async def _die(self, process: Process) -> None:
        self._crash(process)
        await asyncio.get_running_loop().create_future()

    def _crash(self, process: Process) -> None:
        if not process.alive:
            return
        worker = None if process.worker is None else process.worker.id
        process.kill()
        self.crashes += 1
        self._database.loop.call_later(SPAWN_S, self._succeed, process, worker)

    def _succeed(self, process: Process, worker: int | None) -> None:
        """Take over from a worker that died, and start another one in its place. Its lease is over: nobody need wait
        for what it might still dispatch."""
        if worker is not None:
            workers = self._root._data.workers
            workers[worker] = structs.replace(workers[worker], lease_until=self._database.now_us())
            self._database.loop.create_task(self._root.take_over([worker], recoveries_max=RECOVERIES_MAX))
        if process is self._worker:
            self._hire()

    def _check_faults(self) -> None:
        """A fault that never struck proves nothing, nor does an answer that nobody asked for: the name is misspelt, or
        was never reached. An undo that was given up shows nowhere else."""
        self._people.raise_failure()
        never = idle(self.faults, self._begun(), self._calls.verbs(), self._beside.names)
        if words := never or self._people.unasked() or self._beside.wrong():
            raise AssertionError(words)

    def _begun(self) -> list[tuple[str, str]]:
        """What faults can strike, by name and key, as often as it began: bodies of steps, and tries to hand over."""
        return [*((each.step, each.key) for each in self.executions), *self._handing.tries]

    def _standing(self) -> Standing:
        """Where every run stands, in words."""
        settings = self._settings
        return Standing(
            self._root._data, self._cast.agents, settings.queues, settings.deployment, tuple(self.executions)
        )
