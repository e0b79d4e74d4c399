"""What parked runs wait for, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from perdure.client.info import moment
from perdure.core.records import Interrupt, Run, RunState, Wait, WaitKind, interrupt_id, run_id
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


async def thread_names(store: Store, threads: Iterable[int]) -> dict[int, str]:
    """The ids that users know of threads."""
    names: dict[int, str] = {}
    for number in set(threads):
        for row in await store.list_threads(limit=1, after=number + 1):
            if row.id == number:
                names[number] = row.thread_id
    return names


async def _questions(store: Store, waits: Sequence[Wait]) -> dict[int, Interrupt]:
    wanted = _targets(waits, WaitKind.ANSWER)
    return {row.id: row for row in await store.get_interrupts(wanted)} if wanted else {}


def _targets(waits: Sequence[Wait], kind: WaitKind) -> list[int]:
    return sorted({wait.target for wait in waits if wait.kind is kind and wait.target is not None})


def _words(wait: Wait, questions: dict[int, Interrupt], threads: dict[int, str]) -> str:
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
