"""What `perdure doctor` finds in the store: workers that are gone, what no worker takes, what waits for a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from perdure.core.records import Run
    from perdure.store.protocol import Store

NAMED_MAX: Final = 5
"""Workers, sinks and runs that a check names."""

LANES_MAX: Final = 100
"""Lanes whose first deliveries are looked at."""

RUNS_MAX: Final = 10_000
"""Queued runs that are looked at, and as many that wait: the newest."""


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    well: bool
    found: str
    for_person: bool = False
    """It is as it should be, but does not go on before somebody does something."""


async def standing_checks(store: Store) -> list[Check]:
    """How things stand in an open store."""
    return [
        *await _silent_workers(store),
        *await _unserved(store),
        *await _overdue(store),
        *await _for_people(store),
    ]


async def _silent_workers(store: Store) -> list[Check]:
    """Workers that were killed, and that nobody has declared dead yet: unwell, where they hold runs that nobody else is
    there to take over."""
    from perdure.cli.worker_pages import is_silent
    from perdure.core.records import worker_id
    from perdure.terminal.text import count

    rows, silent, now_us = await store.workers(alive=True), await store.silent_workers(), await store.now_us()
    gone = [row for row in rows if is_silent(row, silent=silent, now_us=now_us)]
    if not gone:
        return []
    held = sum(row.running for row in gone)
    names = ", ".join(worker_id(row.id) for row in gone[:NAMED_MAX]) + (" …" if len(gone) > NAMED_MAX else "")
    said = f"{count(len(gone), 'worker')} without a sign of life ({names}), with {count(held, 'run')} in hand"
    if len(rows) > len(gone):
        return [Check("workers", True, f"{said}; another one takes over within a lease: `perdure workers list`")]
    return [Check("workers", not held, f"{said}, and no other is alive; start one: `perdure worker MODULE:APP`")]


async def _unserved(store: Store) -> list[Check]:
    """Runs that are due, and that no worker which is alive will take: they would wait for ever."""
    from perdure.cli.facts import gather_facts
    from perdure.core.records import run_id
    from perdure.terminal.text import clean, count

    late = [run async for run in _late(store)]
    facts = [fact for fact in (await gather_facts(store, late)).items if fact.why is not None and fact.why.unserved]
    if not facts:
        return []
    shorts = list(dict.fromkeys(fact.why.short for fact in facts if fact.why is not None))
    names = ", ".join(run_id(fact.run.id) for fact in facts[:NAMED_MAX]) + (" …" if len(facts) > NAMED_MAX else "")
    why = "; ".join(map(clean, shorts[:NAMED_MAX])) + (" …" if len(shorts) > NAMED_MAX else "")
    first = facts[0]
    remedy = "" if first.why is None or first.why.remedy is None else f"; {first.why.remedy}"
    said = f"{count(len(facts), 'run')} due for more than a minute ({names}): {why}"
    return [Check("unserved", False, f"{said}{remedy} (`perdure runs show {run_id(first.run.id)}`)")]


async def _late(store: Store) -> AsyncIterator[Run]:
    """Runs that could have been claimed a minute ago."""
    from perdure.client.deliveries import OVERDUE_US
    from perdure.core.limits import LIST_ROWS_MAX
    from perdure.core.records import RunState
    from perdure.core.requests import RunFilter

    now_us = await store.now_us()
    for state in (RunState.QUEUED, RunState.WAITING):
        last: int | None = None
        for _ in range(RUNS_MAX // LIST_ROWS_MAX):
            page = await store.list_runs(RunFilter(state=state, limit=LIST_ROWS_MAX, after=last))
            for run in page:
                if run.ready and now_us - run.ready_at > OVERDUE_US:
                    yield run
            if len(page) < LIST_ROWS_MAX:
                break
            last = page[-1].id


async def _overdue(store: Store) -> list[Check]:
    """Deliveries that nobody takes."""
    from perdure.cli.worker_pages import is_anybody_alive
    from perdure.client.deliveries import OVERDUE_US, due_since
    from perdure.terminal.text import clean, duration

    now_us = await store.now_us()
    rows = await store.overdue_deliveries(now_us - OVERDUE_US, limit=LANES_MAX + 1)
    found = [(row.sink, await due_since(store, row)) for row in rows[:LANES_MAX]]
    late = [(sink, now_us - since) for sink, since in found if since is not None and now_us - since > OVERDUE_US]
    if not late:
        return []
    sinks = list(dict.fromkeys(clean(sink) for sink, _ in late))
    named = ", ".join(sinks[:NAMED_MAX]) + (" …" if len(sinks) > NAMED_MAX else "")
    more = " or more" if len(rows) > LANES_MAX else ""
    count = f"{_counted(len(late), 'delivery')}{more}"
    said = f"{count} due for more than a minute, the oldest for {duration(max(us for _, us in late))} (to {named})"
    if not await is_anybody_alive(store):
        return [Check("overdue", False, f"{said}: no worker is alive; start one: `perdure worker MODULE:APP`")]
    shown = "`perdure deliveries list --state queued`"
    start = "start one whose app has them: `perdure worker MODULE:APP`"
    return [Check("overdue", False, f"{said}: no worker that is alive takes them ({shown}); {start}")]


async def _for_people(store: Store) -> list[Check]:
    """What waits for a person to do something. That is nobody's fault, so it is well; but it must be seen."""
    from perdure.core.deliveries import DeliveryFilter, DeliveryState
    from perdure.core.effects import EffectFilter, EffectState
    from perdure.core.limits import LIST_ROWS_MAX
    from perdure.core.records import RunState
    from perdure.core.requests import InterruptFilter, RunFilter

    found = {
        ("questions", "open question", "perdure interrupts list"): len(
            await store.interrupts(InterruptFilter(limit=LIST_ROWS_MAX))
        ),
        ("dead letters", "dead letter", "perdure messages dead"): len(await store.dead_letters(limit=LIST_ROWS_MAX)),
        ("held runs", "held run", "perdure runs list --state held"): len(
            await store.list_runs(RunFilter(state=RunState.HELD, limit=LIST_ROWS_MAX))
        ),
        ("unknown", "unknown effect", "perdure effects list --state unknown"): len(
            await store.effects(EffectFilter(state=EffectState.UNKNOWN, limit=LIST_ROWS_MAX))
        ),
        ("undos", "failed undo", "perdure effects list --state undo_failed"): len(
            await store.effects(EffectFilter(state=EffectState.UNDO_FAILED, limit=LIST_ROWS_MAX))
        ),
        ("deliveries", "dead delivery", "perdure deliveries list --state dead"): len(
            await store.deliveries(DeliveryFilter(state=DeliveryState.DEAD, limit=LIST_ROWS_MAX))
        ),
    }
    return [
        Check(
            what,
            True,
            f"{_counted(number, noun)}{' or more' if number >= LIST_ROWS_MAX else ''}: `{shown}`",
            for_person=True,
        )
        for (what, noun, shown), number in found.items()
        if number
    ]


def _counted(number: int, noun: str) -> str:
    from perdure.terminal.text import count

    return count(number, noun, noun.removesuffix("y") + "ies" if noun.endswith("y") else None)
