"""A run's log and a thread's state, read from the store and decoded as far as a page needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.cli.awaiting import Around
from perdure.cli.budget_words import Budgets, about
from perdure.cli.facts import Facts
from perdure.cli.timeline import CLOCKS_US, Forked, Parked, Timeline, timeline
from perdure.cli.verbs import Verb, is_result_of, started_by, verb_of
from perdure.core.budgets import BudgetRow
from perdure.core.deliveries import Delivery, DeliveryFilter
from perdure.core.display import render, to_jsonable
from perdure.core.effects import Effect, EffectFilter, EffectState
from perdure.core.failures import decode_error
from perdure.core.limits import LIST_ROWS_MAX, PAYLOAD_BYTES_MAX
from perdure.core.meters import UsageBy, UsageFilter, UsageRow
from perdure.core.records import Checkpoint, ErrorInfo, Interrupt, Kind, Run, Thread, Worker, worker_id
from perdure.core.requests import InterruptFilter, RunFilter
from perdure.core.snapshot import spilled
from perdure.runtime.payloads import load_payload, load_state
from perdure.store.pages import whole_log
from perdure.store.protocol import Store

WHOLE = 2 * PAYLOAD_BYTES_MAX
"""A limit of characters that no record reaches."""


@dataclass(frozen=True, slots=True)
class RunLog:
    """Everything recorded about a run, and about who recorded it."""

    line: Timeline
    workers: Mapping[int, Worker]
    now_us: int
    loaded: Mapping[bytes, bytes]
    """What spilled payloads stand for, where that was read."""
    holders: Mapping[int, int]
    """By fence, the worker that recorded something under it."""
    questions: Mapping[tuple[int, str], Interrupt]
    """What the run has asked, by super-step and key."""
    children: Mapping[int, Run]
    """The runs that it has started, or found started."""
    around: Around
    """What its waits point to."""
    silent: frozenset[int] = frozenset()
    """Workers that show no sign of life, though their rows say alive."""
    effects: tuple[Effect, ...] = ()
    """What it did to the outside world that waits for a person: nobody knows whether it happened, or it could not be
    undone."""
    deliveries: tuple[Delivery, ...] = ()
    """What it has handed over, and its bills, oldest first: at most `LIST_ROWS_MAX` of them."""
    usage: tuple[UsageRow, ...] = ()
    """What it has used, by name."""
    budgets: Budgets = field(default_factory=dict)
    """What its questions about budgets were about, as that is now."""
    cancelled: str | None = None
    """Why its cancellation was requested, where it was."""

    def verb(self, row: Checkpoint) -> Verb:
        """What the record is of."""
        return verb_of(row, asked=(row.super_step, row.key) in self.questions)

    def question(self, row: Checkpoint) -> Interrupt | None:
        """What was asked under the record's key."""
        return self.questions.get((row.super_step, row.key))

    def child(self, row: Checkpoint) -> Run | None:
        """The child that the record of a start, or of a child's result, is of."""
        match self.verb(row):
            case Verb.START:
                number = started_by(row)
                return None if number is None else self.children.get(number)
            case Verb.RESULT:
                return next((child for child in self.children.values() if is_result_of(row, child.id)), None)
            case _:
                return None

    def stretches(self) -> list[Parked]:
        """When it was parked."""
        return [line for step in self.line.super_steps for line in step.lines if isinstance(line, Parked)]

    def forked(self) -> Forked | None:
        """Where it was forked, if it was and that shows."""
        lines = (line for step in self.line.super_steps for line in step.lines)
        return next((line for line in lines if isinstance(line, Forked)), None)

    def steps(self) -> Iterator[Checkpoint]:
        """Every recorded step."""
        return (line for step in self.line.super_steps for line in step.lines if isinstance(line, Checkpoint))

    def last_at(self, run: Run) -> int:
        """When the run's present claim last recorded something, else when it began as far as anybody knows."""
        recorded = [step.ended_at for step in self.steps() if step.fence == run.fence]
        return max(recorded, default=run.started_at or run.created_at)

    def arguments(self, boundary: Checkpoint) -> Any:
        """The arguments of a super-step: a list, or `args` and `kwargs` where some were given by name."""
        match self.value(boundary.payload):
            case [list() as args, dict() as kwargs]:
                return {"args": args, "kwargs": kwargs} if kwargs else args
            case other:
                return other

    def holder(self, fence: int) -> str:
        """Who recorded something under this fence; empty where nobody did."""
        return worker_id(self.holders[fence]) if fence in self.holders else ""

    def value(self, payload: bytes) -> Any:
        """The value of a payload, as JSON."""
        return render(self.loaded.get(payload, payload), WHOLE)

    def error(self, payload: bytes) -> ErrorInfo:
        """The error in a payload."""
        return decode_error(self.loaded.get(payload, payload))

    def size(self, payload: bytes) -> int | None:
        """Bytes of a payload; None for one that lies elsewhere and was not read."""
        if payload in self.loaded:
            return len(self.loaded[payload])
        return None if spilled(payload) else len(payload)


async def read_run(store: Store, run: Run, *, facts: Facts, full: bool) -> RunLog:
    """A run's log; the values of its steps too, with `full`."""
    log = [row async for row in whole_log(store, run.id)]
    attempts = await store.attempts(run.id)
    questions = await read_questions(store, run)
    asked = [payload for row in questions for payload in (row.payload, row.answer) if payload is not None]
    wanted = [row.payload for row in log if full or row.failed] + [row.error for row in attempts if row.error]
    wanted += asked if full else []
    loaded = {payload: await load_payload(store, run.thread, payload) for payload in wanted if spilled(payload)}
    holders = {row.fence: row.worker for row in log if row.kind is Kind.STEP}
    if run.worker is not None:
        holders[run.fence] = run.worker
    places = {(row.super_step, row.key): row for row in questions}
    waits = next((fact.waits for fact in facts.items if fact.run.id == run.id), ())
    budgets = await read_budgets(store, questions)
    line = timeline(
        run, log, attempts, waits=waits, questions=questions, budgets=budgets, clocks_us=_clocks_us(store)
    )  # fmt: skip
    children = {child.id: child for child in await read_children(store, run, log)}
    return RunLog(
        line, facts.workers, facts.now_us, loaded, holders, places, children, facts.around, facts.silent,
        effects=await read_open_effects(store, run),
        deliveries=tuple(await store.deliveries(DeliveryFilter(run=run.id, limit=LIST_ROWS_MAX))),
        usage=tuple(await store.usage(UsageFilter(UsageBy.RUN, run=run.id))),
        budgets=budgets, cancelled=run.cancel,
    )  # fmt: skip


async def read_open_effects(store: Store, run: Run) -> tuple[Effect, ...]:
    """The first effects of a run that wait for a person, oldest first."""
    found: list[Effect] = []
    for state in (EffectState.UNKNOWN, EffectState.UNDO_FAILED):
        found += await store.effects(EffectFilter(state=state, run=run.id))
    return tuple(sorted(found, key=lambda row: row.id))


def _clocks_us(store: Store) -> int:
    """Everybody who uses a file is on one machine, whose clock is the store's too."""
    return 0 if store.url.startswith("sqlite:") else CLOCKS_US


async def read_questions(store: Store, run: Run) -> list[Interrupt]:
    """All that a run has asked, oldest first."""
    found: list[Interrupt] = []
    last: int | None = None
    while page := await store.interrupts(InterruptFilter(state=None, run=run.id, limit=LIST_ROWS_MAX, after=last)):
        found += page
        last = page[-1].id
        if len(page) < LIST_ROWS_MAX:
            break
    return found


async def read_budgets(store: Store, questions: Sequence[Interrupt]) -> dict[int, BudgetRow]:
    """What these questions are about, as far as that is budgets."""
    numbers = sorted({found[0] for row in questions if (found := about(row)) is not None})
    return {row.id: row for row in (await store.get_budgets(numbers) if numbers else ())}


async def read_children(store: Store, run: Run, log: Sequence[Checkpoint]) -> list[Run]:
    """The newest runs that this one is the parent of, and those that were there when its code started them, by id."""
    of_its_own = await store.list_runs(RunFilter(parent=run.id, limit=LIST_ROWS_MAX))
    known = {child.id for child in of_its_own}
    named = (started_by(row) for row in log if verb_of(row, asked=False) is Verb.START)
    others = sorted({number for number in named if number is not None} - known)[-LIST_ROWS_MAX:]
    found = await store.get_runs(others) if others else []
    return sorted([*of_its_own, *found], key=lambda child: child.id)


@dataclass(frozen=True, slots=True)
class Mail:
    """What waits on a thread for its agent, and for people. Of each at most `LIST_ROWS_MAX`: then there may be more."""

    waiting: int
    """Messages in its mailbox."""
    dead: int
    """Dead letters."""
    questions: tuple[Interrupt, ...]
    """Open ones, oldest first."""


async def read_mail(store: Store, thread: Thread) -> Mail:
    """What waits on a thread."""
    open_now = InterruptFilter(thread_id=thread.thread_id, limit=LIST_ROWS_MAX)
    return Mail(
        len(await store.mailbox(thread.id, limit=LIST_ROWS_MAX)),
        len(await store.dead_letters(thread.id, limit=LIST_ROWS_MAX)),
        tuple(await store.interrupts(open_now)),
    )


async def read_state(store: Store, thread: Thread) -> Any:
    """The thread's newest state, as JSON; None before the first."""
    if thread.snapshot_run is None:
        return None
    rows = await store.checkpoints(thread.snapshot_run, super_step=thread.snapshot_step, boundaries=True)
    root = next((row.state for row in rows if row.state is not None), None)
    if root is None:
        return None
    data, _ = await load_state(store, thread.id, root)
    return to_jsonable(data, WHOLE)
