"""The store in memory, broken where runs wait: for times, answers, messages and each other; and where they are
cancelled or forked."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec

from perdure.core import limits
from perdure.core.records import InterruptState, RunState, Wait, WaitKind
from perdure.core.states import TERMINAL
from perdure.store.memory import cancelling, commits, forks, mail, questions, reading, starts, waits
from perdure.store.memory.tables import Tables
from tests.simulation.breaking import Breaking, Mutation, replaced, wrapped


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What is called does nothing."""


# -- parking and waking ----------------------------------------------------------------------------------------------


def _parked_whatever_has_come(original: Any, tables: Any, change: Any, *, now: int) -> bool:
    with patch.object(waits, "_has_come", lambda tables, wait: False):
        return bool(original(tables, change, now=now))


def _without_a_deadline(original: Any, tables: Any, change: Any, *, now: int) -> bool:
    run = tables.runs[change.run]
    tables.runs[run.id] = msgspec.structs.replace(run, deadline_at=None)
    parked = bool(original(tables, change, now=now))
    tables.runs[run.id] = msgspec.structs.replace(tables.runs[run.id], deadline_at=run.deadline_at)
    return parked


def _parked_for_ever(original: Any, tables: Any, change: Any, *, now: int) -> bool:
    parked = bool(original(tables, change, now=now))
    if parked:
        tables.move(change.run, ready_at=limits.NEVER_US)
    return parked


def _deaf_to(*kinds: WaitKind) -> Breaking:
    """What comes of these kinds wakes nobody."""

    def wake_all(original: Any, tables: Any, kind: WaitKind, subject: int) -> None:
        if kind not in kinds:
            original(tables, kind, subject)

    return wrapped(Tables, "wake_all", wake_all)


def _arrives_unheard(original: Any, tables: Any, message: Any) -> Any:
    with patch.object(Tables, "wake", _nothing):
        return original(tables, message)


def _heard_by_all(original: Any, tables: Any, message: Any) -> Any:
    arrived = original(tables, message)
    for run, _ in sorted(tables.waiters.get((WaitKind.MESSAGE, message.thread), set())):
        tables.wake(run)
    return arrived


def _held_in_silence(original: Any, tables: Any, run: Any) -> None:
    if run.state in TERMINAL:
        original(tables, run)


def _woken_in_its_place(tables: Any, run: int) -> None:
    if tables.runs[run].state is RunState.WAITING:
        tables.move(run, state=RunState.QUEUED)


# -- waits -----------------------------------------------------------------------------------------------------------


def _row_stays(original: Any, tables: Any, change: Any, *, now: int) -> None:
    with patch.object(tables, "drop_wait", lambda run, at: tables.waits[run].get(at)):
        original(tables, change, now=now)


def _opened_again(original: Any, tables: Any, change: Any, *, now: int) -> None:
    if (change.super_step, change.key) in tables.waits[change.run]:
        tables.drop_wait(change.run, (change.super_step, change.key))
    original(tables, change, now=now)


def _due_a_little_early(original: Any, tables: Any, wait: Wait, now: int) -> Wait:
    return original(tables, wait, now + 400_000)  # type: ignore[no-any-return]


def _asked_anew(original: Any, tables: Any, change: Any, expires_at: int | None, *, now: int) -> int:
    tables.asked[change.run].pop((change.super_step, change.key), None)
    return int(original(tables, change, expires_at, now=now))


# -- answers ---------------------------------------------------------------------------------------------------------


def _whatever_was_answered(original: Any, tables: Any, given: Any, *, now: int) -> Any:
    asked = tables.interrupts.get(given.interrupt)
    if asked is not None and asked.state is InterruptState.ANSWERED and asked.answer != given.answer:
        tables.interrupts[asked.id] = msgspec.structs.replace(asked, state=InterruptState.OPEN)
    return original(tables, given, now=now)


def _same_answer_is_another(original: Any, tables: Any, given: Any, *, now: int) -> Any:
    return original(tables, msgspec.structs.replace(given, answer=given.answer + b"\xc0"), now=now)


# -- messages --------------------------------------------------------------------------------------------------------


def _left_in_place(original: Any, tables: Any, thread: int, seq: int, *, now: int) -> None:
    message = tables.mail[thread][seq]
    original(tables, thread, seq, now=now)
    tables.mail[thread] = dict(sorted({**tables.mail[thread], seq: message}.items()))


def _not_remembered(original: Any, tables: Any, message: Any, *, now: int) -> Any:
    tables.arrived.pop(message.id, None)
    return original(tables, message, now=now)


def _buried_nowhere(tables: Any, change: Any) -> None:
    tables.mail[change.thread].pop(change.seq, None)


# -- cancellations ---------------------------------------------------------------------------------------------------


def _all_descendants(tables: Any, run: int) -> Any:
    below = [run]
    while below:
        each = below.pop()
        yield each
        below += tables.children.get(each, ())


def _knows_if_it_parks(original: Any, change: Any) -> bool:
    return isinstance(change, commits.ParkRun) or bool(original(change))


def _knows_if_it_ends(original: Any, change: Any) -> bool:
    return isinstance(change, commits.EndRun) or bool(original(change))


def _answering(**forgotten: Any) -> Breaking:
    """A claim's answer with something left out."""
    return wrapped(
        reading, "claimed", lambda original, tables, run: msgspec.structs.replace(original(tables, run), **forgotten)
    )


def _stays_ended(original: Any, tables: Any, run: Any, reason: str, payload: bytes, *, now: int) -> None:
    with patch.object(Tables, "leave", _nothing):
        original(tables, run, reason, payload, now=now)


def _records_left_out(original: Any, tables: Any, asked: Any, *, now: int) -> Any:
    return original(tables, msgspec.structs.replace(asked, records=asked.records[1:]), now=now)


WAITING = (
    Mutation(
        "A run is parked though what it waits for has come",
        "still waits",
        wrapped(waits, "park", _parked_whatever_has_come),
    ),
    Mutation("A parked run has no deadline", "what it waits for comes at", wrapped(waits, "park", _without_a_deadline)),
    Mutation("A parked run's time never comes", "what it waits for comes at", wrapped(waits, "park", _parked_for_ever)),
    Mutation("An answer wakes nobody", "still waits for answer", _deaf_to(WaitKind.ANSWER)),
    Mutation("A run's end wakes nobody", "still waits for run", _deaf_to(WaitKind.RUN)),
    Mutation("Room in a mailbox wakes nobody", "still waits for room", _deaf_to(WaitKind.ROOM)),
    Mutation("A message wakes nobody", "still waits for message", wrapped(mail, "_arrive", _arrives_unheard)),
    Mutation(
        "A message wakes those who want another", "nothing that it waits for", wrapped(mail, "_arrive", _heard_by_all)
    ),
    Mutation(
        "A run that is held wakes nobody", "still waits for run", wrapped(Tables, "_note_ended", _held_in_silence)
    ),
    Mutation(
        "A run that was woken keeps its place",
        "was not its owner|by the",
        replaced(Tables, "wake", _woken_in_its_place),
    ),
    Mutation("A record does not end its wait", "which is on record", wrapped(waits, "close_wait", _row_stays)),
    Mutation("A wait that is opened again begins anew", "became", wrapped(waits, "open_wait", _opened_again)),
    Mutation("A super-step's end leaves its waits", "and waits for", replaced(waits, "close_all", _nothing)),
    Mutation("A wait is ready before its time", "the store says", wrapped(waits, "_seen", _due_a_little_early)),
    Mutation("A question that is asked again is another one", "more than once", wrapped(questions, "ask", _asked_anew)),
    Mutation("Another answer replaces the first", "answer", wrapped(questions, "answer", _whatever_was_answered)),
    Mutation(
        "An answer is not the one that was given", "answer", wrapped(questions, "answer", _same_answer_is_another)
    ),
    Mutation(
        "An expired question takes an answer",
        "after its time",
        replaced(questions, "_is_due", lambda asked, now: False),
    ),
    Mutation("A message that was received stays", "still in its mailbox", wrapped(mail, "take", _left_in_place)),
    Mutation("A message that comes twice is two", "came again", wrapped(mail, "send", _not_remembered)),
    Mutation("A mailbox takes any number", "not NotSent|FULL", replaced(mail, "is_full", lambda tables, thread: False)),
    Mutation("A dead letter is thrown away", "is no dead letter", replaced(mail, "bury", _buried_nowhere)),
    Mutation(
        "A cancellation does not go down the tree",
        "was to be cancelled",
        replaced(cancelling, "_tree", lambda tables, run: [run]),
    ),
    Mutation(
        "A cancellation reaches detached children",
        "by the cancellation",
        replaced(cancelling, "_tree", _all_descendants),
    ),
    Mutation("A cancelled run completes", "and its cancellation", wrapped(commits, "is_aware", _knows_if_it_ends)),
    Mutation(
        "A run is parked and does not know that it is cancelled",
        "does not know of",
        wrapped(commits, "is_aware", _knows_if_it_parks),
    ),
    Mutation("A claim does not say that the run is cancelled", "of its cancellation", _answering(cancel=None)),
    Mutation("A claim comes without the waits", "it was told of", _answering(waits=())),
    Mutation("A run that ends at once keeps its turn", "head|says", wrapped(cancelling, "_end", _stays_ended)),
    Mutation("A state that was to be taken back stays", "snapshot", replaced(cancelling, "take_back", _nothing)),
    Mutation("A child is started for anybody", "start of", replaced(starts, "_gone", lambda tables, parent: None)),
    Mutation("A start passes over an open question", "start of", replaced(starts, "_question", lambda *args: None)),
    Mutation("A fork begins without a record", "was to have", wrapped(forks, "fork", _records_left_out)),
)
