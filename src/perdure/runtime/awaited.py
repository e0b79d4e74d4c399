"""What unfinished runs wait for, in words, and the views of runs that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, assert_never

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Interrupt, Outcome, Run, RunState, Wait, WaitKind, interrupt_id, run_id
from perdure.core.states import TERMINAL
from perdure.runtime.info import RunInfo, moment, run_info
from perdure.runtime.payloads import load_payload
from perdure.store.protocol import Store

SHOWN_MAX: Final = 3
"""Waits of one run that are named; the others are counted."""


async def awaited(store: Store, runs: Iterable[Run]) -> dict[int, str]:
    """For each parked run among these, what it waits for: its waits in the order of their keys."""
    parked = [run.id for run in runs if run.state is RunState.WAITING]
    if not parked:
        return {}
    waits: dict[int, list[Wait]] = {run: [] for run in parked}
    for wait in await store.waits(parked):
        waits[wait.run].append(wait)
    shown = [wait for some in waits.values() for wait in some[:SHOWN_MAX]]
    questions = await _questions(store, shown)
    threads = await thread_names(store, _targets(shown, WaitKind.ROOM))
    return {
        run: _joined([_words(wait, questions, threads) for wait in some[:SHOWN_MAX]], len(some))
        for run, some in waits.items()
        if some
    }


async def run_view(
    store: Store, run: Run, decode: Callable[[bytes], Any], *, outcome: Outcome | None = None
) -> RunInfo:  # fmt: skip
    """A run's view with its outcome, or with what it waits for."""
    if run.state in TERMINAL:
        outcome = outcome or next(iter(await store.outcomes([run.id])), None)
        if outcome is not None:
            payload = await load_payload(store, run.thread, outcome.payload)
            outcome = Outcome(run.id, outcome.failed, payload)
        return run_info(run, outcome, decode)
    waits = await awaited(store, [run])
    head: int | None = None
    if run.state is RunState.QUEUED and not run.ready:
        thread = await store.get_thread(run.thread_id)
        head = None if thread is None else thread.head
    return run_info(run, None, decode, head=head, now_us=await store.now_us(), awaited=waits.get(run.id))


async def thread_names(store: Store, threads: Iterable[int]) -> dict[int, str]:
    """The ids that users know of threads: one query, unless these are far apart."""
    names: dict[int, str] = {}
    asked = set(threads)
    wanted = sorted(asked)
    while wanted:
        limit = min(LIST_ROWS_MAX, wanted[-1] - wanted[0] + 1)
        page = await store.list_threads(limit=limit, after=wanted[-1] + 1)
        names |= {row.id: row.thread_id for row in page if row.id in asked}
        wanted = [number for number in wanted if number < page[-1].id] if len(page) == limit else []
    return names


async def _questions(store: Store, waits: Sequence[Wait]) -> dict[int, Interrupt]:
    wanted = _targets(waits, WaitKind.ANSWER)
    return {row.id: row for row in await store.get_interrupts(wanted)} if wanted else {}


def _targets(waits: Sequence[Wait], kind: WaitKind) -> list[int]:
    return sorted({wait.target for wait in waits if wait.kind is kind and wait.target is not None})


def _words(wait: Wait, questions: dict[int, Interrupt], threads: dict[int, str]) -> str:
    over = wait.due and wait.kind is not WaitKind.TIMER
    return _what(wait, questions, threads) + (", whose time is over" if over else "")


def _what(wait: Wait, questions: dict[int, Interrupt], threads: dict[int, str]) -> str:
    target = wait.target or 0
    match wait.kind:
        case WaitKind.TIMER:
            return "its time" if wait.due_at is None else moment(wait.due_at).isoformat(timespec="seconds")
        case WaitKind.ANSWER:
            assignee = questions[target].assignee if target in questions else None
            return f"an answer to {interrupt_id(target)}" + (f" from {assignee}" if assignee else "")
        case WaitKind.MESSAGE:
            return f"a message ({' or '.join(wait.labels)})" if wait.labels else "a message"
        case WaitKind.RUN:
            return f"run {run_id(target)}"
        case WaitKind.ROOM:
            return f"room in the mailbox of thread {threads.get(target, target)!r}"
        case _:
            assert_never(wait.kind)


def _joined(shown: list[str], count: int) -> str:
    """ "a, b, c and 4 more" """
    rest = count - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
