"""Programs on a store's verbs, from seeds.

The author tells what it writes to a reference in memory, under a clock of its own, and draws the next operation from
what the reference answered and remembers. So most operations mean something: claims find runs, batches carry the right
fence. Often enough they do not: stale fences, other people's runs, the dead and the retired, batches told twice,
records that exist, what comes after the end. A seed gives the same program on every machine.

What a worker sends is drawn in `batches.py`, `pauses.py` and `deeds.py`, what people ask in `outsiders.py`; the rest is
here.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from perdure.core.changes import Change, record_of
from perdure.core.limits import RECOVERIES_MAX
from perdure.core.records import Claimed, IfBusy, Run, RunState
from perdure.core.requests import ClaimRequest, NewWorker, Parent, RunFilter, StartRun
from perdure.runtime.starting import DISPLACING
from perdure.store.memory import MemoryStore
from perdure.testing.differential import batches
from perdure.testing.differential.batches import KEYS, UNIVERSE
from perdure.testing.differential.grounds import MemoryGround
from perdure.testing.differential.operations import (
    MAIN,
    UNIT_S,
    Advance,
    Call,
    Crash,
    Look,
    Operation,
    Reserve,
    Silent,
    Vanish,
    blob,
)
from perdure.testing.differential.outsiders import UNKNOWN, Outsiders
from perdure.testing.differential.pauses import PAST
from perdure.testing.differential.performing import Performance, short_queues
from perdure.testing.differential.sight import Sight

AGENTS: Final = ("ann", "bob")
QUEUES: Final = ("default", "slow")
DEPLOYMENTS: Final = (*["v1"] * 9, "v2")
CLONES: Final = ("a", "b")
TAGS: Final = ("red", "green", "blue")
IDS_A_SEED: Final = 100_000
LOOK_EVERY: Final = 20
"""Operations between two looks at everything."""

Draw = Callable[[], Sequence[Operation]]


async def write(seed: int, length: int) -> tuple[Operation, ...]:
    """The program of this seed, of about this many operations."""
    ground = MemoryGround()
    async with ground.fresh() as store:
        assert isinstance(store, MemoryStore)
        performance = Performance(ground, store, UNIVERSE)
        author = Author(seed, performance, Sight(store._data))
        with short_queues():
            while len(author.program) < length:
                await author.go_on()
        await performance.close()
    return (*author.program, Look())


class Author:
    """Writes one program."""

    def __init__(self, seed: int, reference: Performance, sight: Sight) -> None:
        self.random = random.Random(f"a store's program {seed}")
        self.reference = reference
        self.program: list[Operation] = []
        self.next_id = (seed + 1) * IDS_A_SEED
        self.asked: list[StartRun] = []
        self.registered: list[NewWorker] = []
        self.claims: list[tuple[int, Claimed]] = []
        self.sent: list[tuple[int, tuple[Change, ...]]] = []
        self.places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Where in its log something of a run may be."""
        self.tickets: dict[int, int] = defaultdict(int)
        self.eagerness = self.random.choice([0.2, 0.5, 0.6])
        """How often something is committed while somebody could."""
        self.rows: dict[int, Run] = {}
        self.living: set[int] = set()
        self.batches = batches.Batches(self.random, sight, new_id=self._new_id)
        self.outsiders = Outsiders(self.random, sight, self.batches.pauses, by=self._by)
        self._draws: dict[Draw, int] = {
            self.start: 12, self.start_again: 2, self.register: 5, self.claim: 22, self.renew: 1, self.set_idle: 1,
            self.take_over: 6, self.wear_out: 1, self.retire: 1, self.give_back: 3, self.release: 6, self.retry: 6,
            self.advance: 5, self.attend: 2, self.crash: 2, self.watch: 1, self.reserve: 1, self.read: 14,
            self.outsiders.answer: 10, self.outsiders.send: 6, self.outsiders.revive: 12, self.outsiders.cancel: 5,
            self.fork: 2, self.resolve: 5, self.undo: 6, self.relay: 30, self.redeliver: 8, self.set_budget: 4,
        }  # fmt: skip

    # -- going on --------------------------------------------------------------------------------------------

    async def go_on(self) -> None:
        """Write one more operation, or a few that belong together."""
        self.rows = {row.id: row for row in await self.reference.store.get_runs([ask.id for ask in self.asked])}
        self.living = {row.id for row in await self.reference.store.workers()}
        if len(self.program) % LOOK_EVERY == LOOK_EVERY - 1:
            await self._tell(Look())
        if self.random.random() < (self.eagerness if self._holders() else 0.03):
            await self._commit()
            return
        draw = self.random.choices(list(self._draws), list(self._draws.values()))[0]
        for operation in (draw if self.living else self.register)():
            await self._tell(operation)

    async def _tell(self, operation: Operation) -> Any:
        self.program.append(operation)
        answer = await self.reference.answer(operation)
        if isinstance(operation, Call) and operation.verb == "claim" and isinstance(answer, list):
            self.claims += [(operation.args[0].worker, each) for each in answer]
        return answer

    async def _commit(self) -> None:
        """A batch: for what its worker holds, for what it does not, or the same again."""
        if not self.claims:
            return
        worker, batch = self._batch()
        self.sent.append((worker, tuple(batch)))
        for change in batch:
            if (record := record_of(change)) is not None:
                self.places[change.run].append((record.super_step, record.seq))
        await self._tell(Call("commit", (worker, tuple(batch)), by=self._by()))

    def _batch(self) -> tuple[int, Sequence[Change]]:
        kind = self.random.random()
        if kind < 0.12 and self.sent:
            return self.random.choice(self.sent[-4:])
        if kind < 0.3:
            worker = self._holder()
            mine = self._mine(worker)
            strays = [self._stray() for _ in range(self.random.randint(0, 2))]
            return worker, batches.plain([*batches.apart(strays, mine), *mine])
        worker = self._holder()
        return worker, batches.plain(self._mine(worker))

    def _mine(self, worker: int) -> Sequence[Change]:
        """Changes of some runs that the worker holds."""
        held = [
            each for owner, each in self.claims if owner == worker and _holds(self.rows.get(each.run), worker, each)
        ]
        picked = self.random.sample(held, min(len(held), self.random.randint(1, 3)))
        return self.batches.mixed([self.batches.slice(each, self.rows[each.run].super_step) for each in picked])

    def _stray(self) -> Change:
        """A change under a claim that somebody has had, or could not have had."""
        _, claimed = self.random.choice(self.claims)
        row = self.rows.get(claimed.run)
        super_step = claimed.super_step if row is None else row.super_step
        fence = claimed.fence + self.random.choice([0, 0, 0, 1])
        run = UNKNOWN if self.random.random() < 0.1 else claimed.run
        return self.batches.any_kind(claimed, super_step, run=run, fence=fence)

    # -- starting --------------------------------------------------------------------------------------------

    def start(self) -> Sequence[Operation]:
        """Some starts in one call; one that displaces others has a call of its own, for who is cancelled in it and who
        is started in it would become ready at the same moment."""
        asked = [self._ask() for _ in range(self.random.randint(1, 3))]
        displacing = [ask for ask in asked if ask.if_busy in DISPLACING]
        asked = displacing[:1] or asked
        self.asked += asked
        return [Call("start", (tuple(asked),), by=self._by())]

    def start_again(self) -> Sequence[Operation]:
        """Starts once more, as after a lost answer: in a call of their own, beside a new one, or twice in one call."""
        again = self.random.sample(self.asked, min(len(self.asked), self.random.randint(0, 2)))
        new = [ask for ask in (self._ask() for _ in range(self.random.randint(0, 1))) if ask.if_busy not in DISPLACING]
        self.asked += new
        asked = (
            [*again, *new, *self.random.choices([*again, *new], k=self.random.randint(0, 1))] if again or new else []
        )
        return [Call("start", (tuple(asked),))]

    def _ask(self) -> StartRun:
        choose = self.random.choice
        agent, payload = choose(AGENTS), choose([b"1", b"1", b"2"])
        owner = agent if self.random.random() < 0.9 else AGENTS[0]
        return StartRun(
            id=self._new_id(),
            thread=self._new_id(),
            thread_id=f"{owner}-{self.random.randint(1, 3)}",
            agent=agent,
            queue=choose([QUEUES[0], *QUEUES]),
            priority=choose([0, 0, 1, -1]),
            delay_us=choose([*[0] * 8, 1, 2]) * UNIT_S * 1_000_000,
            key=choose([*[None] * 5, "x", "y", "z"]),
            digest=(agent.encode() + payload).ljust(16, b"."),
            payload=payload,
            if_busy=choose([*[IfBusy.ENQUEUE] * 3, *[IfBusy.UNLESS_ASKED] * 7, *IfBusy]),
            tenant=choose([None, "acme"]),
            tags=tuple(self.random.sample(TAGS, self.random.choice([0, 0, 1, 2]))),
            blobs=choose([(), (), (blob(b"shared"), blob(payload))]),
            deadline_us=choose([*[None] * 8, UNIT_S * 1_000_000, 3 * UNIT_S * 1_000_000]),
            deadline_at=choose([*[None] * 30, PAST]),
            parent=self._parent() if self.random.random() < 0.25 else None,
            displaced=b"displaced",
            **self.batches.handing.given(),
        )

    def _parent(self) -> Parent | None:
        """A run in somebody's hands, or one that was."""
        if not self.claims:
            return None
        worker, claimed = self.random.choice(self.claims[-6:])
        row = self.rows.get(claimed.run)
        fence = claimed.fence + self.random.choice([*[0] * 9, 1])
        knows = row is not None and row.cancel is not None
        return Parent(
            claimed.run, fence, worker, knows if self.random.random() < 0.8 else not knows,
            self.random.random() < 0.3,
        )  # fmt: skip

    def fork(self) -> Sequence[Operation]:
        ask = self._ask()
        fresh = self.random.random() < 0.8
        start = msgspec.structs.replace(ask, parent=None, thread_id=f"fork-{ask.thread}" if fresh else ask.thread_id)
        self.asked.append(start)
        return self.outsiders.fork(start, self.claims)

    # -- working ---------------------------------------------------------------------------------------------

    def register(self) -> Sequence[Operation]:
        worker = self._new_worker()
        self.registered.append(worker)
        if self.random.random() < 0.1:
            worker = self.random.choice(self.registered)
        return [Call("register", (worker,), by=self._by())]

    def _new_worker(self) -> NewWorker:
        lease_us = self.random.choice([2, 5, 50]) * UNIT_S * 1_000_000
        return NewWorker(self._new_id(), "w", "host", 1, self.random.choice(DEPLOYMENTS), lease_us)

    def claim(self) -> Sequence[Operation]:
        choose = self.random.choice
        worker = self._worker()
        request = ClaimRequest(
            worker=worker,
            agents=choose([*[AGENTS] * 8, AGENTS[:1], AGENTS[1:], (*AGENTS, AGENTS[0]), ()]),
            queues=choose([*[QUEUES] * 5, QUEUES[:1], (*QUEUES, QUEUES[0])]),
            deployment=choose(DEPLOYMENTS),
            limit=choose([0, 1, 2, *[100] * 6, 1000]),
            suspects=choose([0, 1, 1, 100]),
            ticket=self._ticket(worker),
        )
        return [Call("claim", (request,), by=self._by())]

    def renew(self) -> Sequence[Operation]:
        return [Call("renew", (self._worker(), 2 * UNIT_S * 1_000_000), by=self._by())]

    def set_idle(self) -> Sequence[Operation]:
        return [Call("set_idle", (self._worker(), self.random.random() < 0.5), by=self._by())]

    def retire(self) -> Sequence[Operation]:
        return [Call("retire", (self._worker(),), by=self._by())]

    def give_back(self) -> Sequence[Operation]:
        keep = [ask.id for ask in self.asked if self.random.random() < 0.5]
        worker = self._worker()
        if self.random.random() < 0.7:
            self.tickets[worker] += 1
        named = {"keep": tuple(keep), "ticket": self._ticket(worker)}
        return [Call("give_back", (worker,), named, by=self._by())]

    def _ticket(self, worker: int) -> int:
        """The worker's own, or one that comes too late."""
        late = self.random.random() < 0.1
        return max(0, self.tickets[worker] - late)

    def advance(self) -> Sequence[Operation]:
        """Time passes; whoever is due to be taken over is, now and then."""
        self.outsiders.time_passes()
        units = self.random.choice([1, 1, 2, 10])
        overdue = Call("take_over", ((),), {"recoveries_max": 3})
        return [Advance(units), *([overdue] if self.random.random() < 0.5 else [])]

    def take_over(self) -> Sequence[Operation]:
        """Some are known to be dead. Strikes add up, so that runs become suspects, and poison."""
        suspects = tuple(sorted({self._holder() for _ in range(self.random.randint(1, 2))}))
        recoveries_max = self.random.choice([1, 2, *[RECOVERIES_MAX] * 5])
        return [Call("take_over", (suspects,), {"recoveries_max": recoveries_max}, by=self._by())]

    def wear_out(self) -> Sequence[Operation]:
        """Workers take whatever there is and die of it, one after another: what they took becomes suspect."""
        operations: list[Operation] = []
        for worker in [self._new_worker() for _ in range(self.random.randint(2, 5))]:
            self.registered.append(worker)
            claim = ClaimRequest(worker.id, AGENTS, QUEUES, worker.deployment, limit=100, suspects=100)
            death = Call("take_over", ((worker.id,),), {"recoveries_max": RECOVERIES_MAX})
            operations += [Call("register", (worker,)), Call("claim", (claim,)), death]
        return operations

    # -- coming and going ------------------------------------------------------------------------------------

    def attend(self) -> Sequence[Operation]:
        """A worker whose death would show; now and then one that is dead at once, on a loop that has ended."""
        worker = self._new_worker()
        self.registered.append(worker)
        if self.random.random() < 0.1:
            return [Vanish(worker)]
        by = self.random.choice(CLONES)
        return [Call("register", (worker,), by=by), Call("attend", (worker.id,), by=by)]

    def crash(self) -> Sequence[Operation]:
        """A process dies; its attending workers fall silent, and are taken over or not."""
        return [Crash(self.random.choice(CLONES)), Silent()]

    def watch(self) -> Sequence[Operation]:
        return [Call("watch", ((self._run(), self._run()),), by=self._by())]

    def reserve(self) -> Sequence[Operation]:
        return [Reserve(self.random.randint(1, 50))]

    # -- operators -------------------------------------------------------------------------------------------

    def release(self) -> Sequence[Operation]:
        if not self._any(RunState.HELD):
            return []
        return [Call("release", (self._run(RunState.HELD),), by=self._by())]

    def retry(self) -> Sequence[Operation]:
        keys = tuple(self.random.sample(KEYS, self.random.randint(0, 3)))
        if not self._any(RunState.FAILED, RunState.CANCELLED):
            return []
        run = self._run(RunState.FAILED, RunState.CANCELLED)
        return [Call("retry", (run, keys), by=self._by())]

    def resolve(self) -> Sequence[Operation]:
        return self.batches.deeds.resolve(self._by())

    def undo(self) -> Sequence[Operation]:
        return self.batches.deeds.retry(self._by())

    def relay(self) -> Sequence[Operation]:
        return self.batches.handing.relay(self._worker(), self._by())

    def redeliver(self) -> Sequence[Operation]:
        return self.batches.handing.redeliver(self._by())

    def set_budget(self) -> Sequence[Operation]:
        return self.batches.handing.set_budget(self._by())

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self) -> Sequence[Operation]:
        draws = (
            self._list_runs, self._list_threads, self._log, self._history, self._by_id, self._waits, self._waits,
            self._effects, self._handed,
        )  # fmt: skip
        return [self.random.choice(draws)()]

    def _waits(self) -> Operation:
        return self.outsiders.read(self._run(), self._worker(), self._limit())

    def _effects(self) -> Operation:
        return self.batches.deeds.read(self._run(), self._limit(), self._by())

    def _handed(self) -> Operation:
        return self.batches.handing.read(self._run(), self._limit(), self._by())

    def _list_runs(self) -> Operation:
        choose = self.random.choice
        where = RunFilter(
            state=choose([None, None, *RunState]),
            agent=choose([None, None, *AGENTS]),
            thread_id=choose([None, None, None, "ann-1", "bob-2", "nobody"]),
            tenant=choose([None, None, None, "acme"]),
            tags=tuple(self.random.sample(TAGS, choose([0, 0, 0, 1, 2]))),
            limit=self._limit(),
            after=choose([None, None, self._run()]),
            parent=choose([None, None, None, self._run()]),
        )
        return Call("list_runs", (where,), by=self._by())

    def _list_threads(self) -> Operation:
        choose = self.random.choice
        after = choose([None, *(ask.thread for ask in self.asked[-6:])])
        named = {"agent": choose([None, *AGENTS]), "limit": self._limit(), "after": after}
        return Call("list_threads", named=named, by=self._by())

    def _log(self) -> Operation:
        """A page of a log, most often from after a place in it."""
        choose = self.random.choice
        run = choose(sorted(self.places)) if self.places and self.random.random() < 0.8 else self._run()
        named = {
            "super_step": choose([None, None, None, 1, 2]),
            "boundaries": self.random.random() < 0.2,
            "limit": self._limit(),
            "after": choose([None, (1, 0), *self.places.get(run, ())]),
        }
        return Call("checkpoints", (run,), named, by=self._by())

    def _history(self) -> Operation:
        thread = self.random.choice([ask.thread for ask in self.asked] or [UNKNOWN])
        after = self.random.choice([None, None, (self._run(), 1), (self._run(), 2)])
        return Call("thread_checkpoints", (thread,), {"limit": self._limit(), "after": after}, by=self._by())

    def _by_id(self) -> Operation:
        runs = (self._run(), self._run(), self._run())
        call = self.random.choice([("get_runs", (runs,)), ("outcomes", (runs,)), ("attempts", (self._run(),))])
        return Call(*call, by=self._by())

    def _limit(self) -> int:
        return self.random.choice([100, 100, 3, 2, 1, 0, -1, 5_000])

    # -- choosing --------------------------------------------------------------------------------------------

    def _new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def _by(self) -> str:
        return self.random.choice([*[MAIN] * 9, *CLONES]) if self.random.random() < 0.3 else MAIN

    def _worker(self) -> int:
        """A worker, most often an alive one."""
        if self.living and self.random.random() < 0.9:
            return self.random.choice(sorted(self.living))
        return self.random.choice([UNKNOWN, *(worker.id for worker in self.registered)])

    def _holder(self) -> int:
        """A worker, most often one that holds runs."""
        holders = self._holders()
        return self.random.choice(holders) if holders and self.random.random() < 0.9 else self._worker()

    def _any(self, *states: RunState) -> bool:
        """Whether a run is in one of these states, or it is tried all the same."""
        return any(run.state in states for run in self.rows.values()) or self.random.random() < 0.1

    def _holders(self) -> list[int]:
        return sorted({row.worker for row in self.rows.values() if row.worker is not None})

    def _run(self, *states: RunState) -> int:
        """A run, in one of these states if there is one."""
        fitting = [run for run in self.rows.values() if run.state in states]
        if fitting and self.random.random() < 0.9:
            return self.random.choice(fitting).id
        return self.random.choice([ask.id for ask in self.asked] or [UNKNOWN])


def _holds(row: Run | None, worker: int, claimed: Claimed) -> bool:
    return row is not None and (row.worker, row.fence) == (worker, claimed.fence)
