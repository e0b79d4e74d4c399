"""The scene: two worker processes, many questions, one `kill -9`, and nobody who repairs anything by hand.

The scene is a client like any other: it starts runs, looks at rows, and reads the side log. It kills the worker that
has most steps in flight once its moment has come, starts another in its place, and waits. Whatever goes wrong here
ends in `SceneFailed`, which says where to look; what the scene then proves is `report`'s to say.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from perdure.app import App
from perdure.client.effects import EffectInfo
from perdure.core.records import Run, RunState, Worker, WorkerState, run_id
from perdure.demo import corpus, questions
from perdure.demo.answers import write_answers
from perdure.demo.approver import Approver, Person, always, approvals
from perdure.demo.brief import Brief
from perdure.demo.model import Endpoint
from perdure.demo.processes import BillingService, Staff
from perdure.demo.reconciliation import Accounts
from perdure.demo.report import Evidence, Kill, Report, judge
from perdure.demo.screen import PlainScreen, Progress, WorkerView
from perdure.demo.sidelog import Body, LogReader, Mark, What, in_flight
from perdure.errors import PerdureError
from perdure.runtime.info import RunInfo
from perdure.store import open_url
from perdure.store.pages import whole_log
from perdure.store.protocol import Store
from perdure.testing.chaos.books import runs_of
from perdure.testing.chaos.processes import Child

CONCURRENCY_MAX: Final = 5
"""Runs in each worker's hands: few, so that the scene lasts long enough to be watched."""

WAVES_MIN: Final = 4
"""Fewer questions are spread over at least so many waves, so that there is a middle to kill in."""

KILL_SHARE: Final = 0.4
"""The kill comes when this share of the runs is done."""

CHARGING_SHARE: Final = 0.6
"""Until then the kill waits for a moment at which the worker has a charge in flight, and steps besides."""

LEASE_S: Final = 5.0
"""Where no model keeps the machine busy. An effect that the killed worker may still have had in its hands is not asked
about before its lease is over, and nobody likes to watch that for long."""

CHARGE: Final = "charge_"
"""What the keys of charges have in them."""

LOOK_S: Final = 0.02
APPROVE_S: Final = 0.05
COUNT_S: Final = 0.1
"""How often the side log is read, the inbox, and the store."""

STALLED_S: Final = 60.0
STALLED_MODEL_S: Final = 900.0
"""Without a new answer for so long, the scene gives up."""

SETTLED: Final = (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.HELD)
"""Nothing more will happen to these by itself."""


class SceneFailed(PerdureError):
    """The scene could not be played to its end; the message says where to look."""


@dataclass(frozen=True, slots=True)
class Script:
    """All that a scene is told."""

    store: str
    folder: Path
    name: str
    """Tag, queue and prefix of this scene's threads: a shared database may hold others."""
    questions: int = 200
    workers: int = 2
    concurrency: int | None = None
    """Runs in each worker's hands; None for what suits the number of questions."""
    docs: str | None = None
    endpoint: Endpoint | None = None
    brief: Brief = field(default_factory=Brief)
    in_stream: bool = False
    """Kill while a model's stream is open."""
    interactive: bool = False
    """Whether the person at the terminal approves the charges, or the scene in his place."""

    @property
    def in_hand(self) -> int:
        """Runs in each worker's hands."""
        if self.concurrency is not None:
            return self.concurrency
        return max(1, min(CONCURRENCY_MAX, self.questions // (self.workers * WAVES_MIN)))

    @property
    def store_shown(self) -> str:
        """The store's address without a password."""
        return open_url(self.store).url

    @property
    def stalled_s(self) -> float:
        return STALLED_S if self.endpoint is None else STALLED_MODEL_S


class Scene:
    """One performance."""

    def __init__(self, script: Script, screen: PlainScreen) -> None:
        self.script = script
        self.screen = screen
        self.brief = replace(
            script.brief, docs=script.docs, sidelog=str(script.folder / "side-log"), approver=script.name
        )
        self.log = LogReader(script.folder / "side-log")
        self.billing = BillingService(script.folder)
        self.staff = Staff(script.folder, queue=script.name, environ={})
        self.kill: Kill | None = None
        self.answered = 0
        self.answered_at = time.monotonic()
        self.told_taken_over = False

    def environ(self) -> dict[str, str]:
        """What the worker processes find in their environment besides ours."""
        return {
            **self.brief.environ(),
            "PERDURE_STORE": self.script.store,
            "PERDURE_CONCURRENCY": str(self.script.in_hand),
            **({"PERDURE_LEASE_S": str(LEASE_S)} if self.script.endpoint is None else {}),
        }

    async def play(self) -> Performance:
        """From the first question to the last answer, and the report on it."""
        from perdure.demo.agents import research

        store = open_url(self.script.store)
        await store.open()
        try:
            async with App("perdure-demo", store=self.script.store) as client:
                client.agent(research.fn)
                await self._ask(client)
                await self._serve()
                for _ in range(self.script.workers):
                    self._hire("started")
                decide = Person(self.screen) if self.script.interactive else always
                await self._watch(store, Approver(client, self.script.name, decide))
                await asyncio.to_thread(self._dismiss)
                return await self._judge(store, client)
        finally:
            await asyncio.to_thread(self._dismiss)
            await store.close()

    async def _ask(self, client: App) -> None:
        """Put every question on disk, each on a thread of its own."""
        script = self.script
        asked = questions.ask(corpus.load(script.docs), script.questions, python=script.docs is None)
        began = time.monotonic()
        starts = (
            client.start(
                "research", question, thread_id=f"{script.name}/{number:03}", queue=script.name, tags=[script.name],
                priority=-number,  # one that comes back from its approval goes before those that have not begun
            )
            for number, question in enumerate(asked, 1)
        )  # fmt: skip
        await asyncio.gather(*starts)
        took_ms = (time.monotonic() - began) * 1000
        self.screen.tell(f"{len(asked)} questions are on disk, each a thread of its own ({took_ms:.0f} ms)")

    async def _serve(self) -> None:
        """Open the billing service, and tell the workers to come where it is."""
        self.brief = replace(self.brief, billing=await self.billing.begin())
        self.staff.environ = self.environ()
        assert self.billing.process is not None, "it has begun"
        self.screen.tell(f"the billing service is open (process {self.billing.process.pid})")

    def _dismiss(self) -> None:
        """End whoever is left; the service last, for who has still a charge in hand."""
        self.staff.dismiss()
        self.billing.end()

    def _hire(self, what: str) -> None:
        worker = self.staff.hire()
        self.screen.tell(f"{worker.name} {what} (process {worker.pid})")

    # -- watching --------------------------------------------------------------------------------------------

    async def _watch(self, store: Store, approver: Approver) -> None:
        """Until every question is settled: look, show, approve, and kill when the moment comes."""
        count_at = approve_at = 0.0
        while self.answered < self.script.questions:
            marks = self.log.refresh()
            if time.monotonic() >= approve_at:
                if await approver.answer_all():
                    self.answered_at = time.monotonic()  # a person may take his time
                approve_at = time.monotonic() + APPROVE_S
            if time.monotonic() >= count_at:
                await self._count(store)
                count_at = time.monotonic() + max(COUNT_S, self.script.questions / 5000)
                self._check()
            victim = self._victim(marks)
            if victim is not None:
                await self._kill(store, victim)
            await asyncio.sleep(LOOK_S)

    async def _count(self, store: Store) -> None:
        """Ask the store how far everything is, and show it."""
        workers = await store.workers(alive=False)
        runs = await runs_of(store, self.script.name)
        settled = sum(run.state in SETTLED for run in runs)
        if settled > self.answered:
            self.answered, self.answered_at = settled, time.monotonic()
        pids = {worker.id: worker.pid for worker in workers}
        holding = Counter(pids.get(run.worker or 0, 0) for run in runs if run.state is RunState.RUNNING)
        begun = Counter(mark.pid for mark in self.log.marks if mark.what is What.BEGIN)
        views = [self._view(worker, holding[worker.pid], begun[worker.pid]) for worker in self.staff.workers]
        self.screen.show(Progress(self.answered, self.script.questions, begun.total(), tuple(views)))
        self._tell_taken_over(runs, workers)

    def _view(self, worker: Child, runs: int, begun: int) -> WorkerView:
        state = "killed" if not worker.alive else "working" if begun else "starting"
        return WorkerView(worker.name, worker.pid, state, runs, len(in_flight(self.log.marks, worker.pid)), begun)

    def _tell_taken_over(self, runs: list[Run], workers: list[Worker]) -> None:
        """Say so once, when the rows show it."""
        if self.kill is None or self.told_taken_over:
            return
        died = [w.ended_at for w in workers if w.pid == self.kill.pid and w.state is WorkerState.DEAD and w.ended_at]
        if died:
            self.told_taken_over = True
            count = sum(run.recoveries > 0 for run in runs)
            noticed_s = (died[0] - self.kill.store_us) / 1e6
            self.screen.tell(f"its death was noticed after {noticed_s:.2f} s and its {count} runs were taken over")

    def _check(self) -> None:
        """Give up where waiting helps no more."""
        for worker in (*self.staff.workers, *self.billing.processes):
            if worker.broken:
                self.screen.tell(f"{worker.name} ended by itself; the end of its log:\n{worker.last_words()}")
                raise SceneFailed(
                    f"{worker.name} ended by itself with code {worker.process.returncode}; its log is {worker.log}"
                )
        if time.monotonic() - self.answered_at > self.script.stalled_s:
            raise SceneFailed(
                f"no new answer for {self.script.stalled_s:.0f} s; look at the workers' logs in {self.script.folder}, "
                f"and at `perdure runs list --store {self.script.store_shown}`"
            )

    # -- the kill --------------------------------------------------------------------------------------------

    def _victim(self, marks: list[Mark]) -> Child | None:
        """The worker to kill now: the one with most to lose, once enough is answered and something is in flight."""
        if self.kill is not None or self.answered < int(self.script.questions * KILL_SHARE):
            return None
        if len(self.staff.alive) < self.script.workers:
            return None
        busy = {worker.pid: in_flight(marks, worker.pid) for worker in self.staff.alive}
        if self.script.in_stream:
            busy = {pid: {b: what for b, what in bodies.items() if what is What.STREAM} for pid, bodies in busy.items()}
        elif self.answered < int(self.script.questions * CHARGING_SHARE):
            most = self.script.in_hand
            busy = {pid: b if charges(b) and len(b) > most else {} for pid, b in busy.items()}
        victim = max(self.staff.alive, key=lambda worker: len(busy[worker.pid]))
        return victim if busy[victim.pid] else None

    async def _kill(self, store: Store, victim: Child) -> None:
        """`kill -9`, note the moment on both clocks, and put another worker in its place."""
        store_us, mono = await store.now_us(), time.monotonic()
        victim.kill()
        gone = time.monotonic()
        theirs = {worker.id for worker in await store.workers(alive=False) if worker.pid == victim.pid}
        held = frozenset(run.id for run in await runs_of(store, self.script.name) if run.worker in theirs)
        self.kill = Kill(victim.pid, mono, gone, store_us, held)
        lost = in_flight(self.log.refresh(), victim.pid)
        streams = sum(what is What.STREAM for what in lost.values())
        speaking = f", {streams} of them in the middle of a model's stream" if streams else ""
        charging = f", {charges(lost)} of them a charge" if charges(lost) else ""
        self.screen.tell(
            f"kill -9 {victim.name}: {len(lost)} step bodies in flight{speaking}{charging}", style="bold red"
        )
        self._hire("started in its place")

    # -- the end ---------------------------------------------------------------------------------------------

    async def _judge(self, store: Store, client: App) -> Performance:
        """Gather what all witnesses say, write the answers, and judge."""
        script = self.script
        runs = await runs_of(store, script.name)
        results = [await client.run_info(run_id(run.id)) for run in runs if run.state is RunState.COMPLETED]
        files = write_answers(script.folder / "answers", results)
        evidence = Evidence(
            asked=script.questions,
            runs=tuple(runs),
            records={run.id: tuple([row async for row in whole_log(store, run.id)]) for run in runs},
            workers=tuple(await store.workers(alive=False)),
            marks=tuple(self.log.refresh()),
            kill=self.kill,
            cited={info.run_id: len(info.result["citations"]) for info in results},
            files=files,
            accounts=Accounts(
                tuple(self.billing.lines()),
                tuple(await effects_of(client, runs)),
                tuple(await approvals(client, script.name)),
            ),
        )
        return Performance(evidence, judge(evidence), results)


@dataclass(frozen=True, slots=True)
class Performance:
    """What there is after a scene: both witnesses, the verdict, the answers."""

    evidence: Evidence
    report: Report
    results: list[RunInfo]


def charges(bodies: dict[Body, What]) -> int:
    """How many of these are charges."""
    return sum(CHARGE in key for _, _, key in bodies)


async def effects_of(client: App, runs: list[Run]) -> list[EffectInfo]:
    """All that the runs did to the outside world, each with its audit."""
    return [
        await client.effect_info(effect.id) for run in runs for effect in await client.effects(run_id=run_id(run.id))
    ]
