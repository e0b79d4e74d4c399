"""What a timeline says of a question, a message or a child, below the line of its record; and when it began."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from perdure.cli import budget_words
from perdure.cli.reading import RunLog
from perdure.cli.verbs import Verb, received
from perdure.core.records import Checkpoint, Interrupt, InterruptState, Run, RunState, interrupt_id, run_id
from perdure.core.snapshot import spilled
from perdure.terminal.text import clean, duration

HEAD_CHARS: Final = 400
"""Of a value in a note: more than a line shows."""


AT_ONCE_US: Final = 50_000
"""A wait that took less had come before the claim looked."""


@dataclass(frozen=True, slots=True)
class Span:
    """When a record's work, or the wait for it, began, and how long it took; None where that is not known."""

    at: int
    took: int | None
    with_above: bool = False
    """It came with what stands above, and when the wait for it began is not recorded."""


def span(row: Checkpoint, log: RunLog, *, parked_at: int | None, woken: bool = False) -> Span:
    """`woken`: it stands below something else that the same claim found when the run was woken.

    A record's own times are those of the claim that made it. What was waited for while the run was parked began
    earlier: a question when it was asked, anything else when the run was parked for it, at the latest."""
    asked = log.question(row)
    match log.verb(row):
        case Verb.QUESTION if asked is not None:
            return Span(asked.created_at, (asked.answered_at or row.ended_at) - asked.created_at)
        case Verb.TIMER | Verb.RECEIVE | Verb.RESULT:
            if parked_at is None and woken and row.ended_at - row.started_at < AT_ONCE_US:
                return Span(row.started_at, None, with_above=True)
            began = row.started_at if parked_at is None else min(parked_at, row.started_at)
            return Span(began, row.ended_at - began)
        case Verb.LIMIT:
            return Span(row.started_at, None)
        case _:
            return Span(row.started_at, row.ended_at - row.started_at)


def notes(row: Checkpoint, log: RunLog) -> Iterator[str]:
    """The lines below a record that say what its key and its times do not."""
    asked, child = log.question(row), log.child(row)
    match log.verb(row):
        case Verb.QUESTION:
            if asked is not None:
                yield asked_in_words(asked, log)
                yield answered_in_words(asked, row, log)
        case Verb.RECEIVE:
            message = None if row.failed or spilled(row.payload) else received(row.payload)
            if message is not None:
                yield f"took {clean(message[0])}: {_head(row.payload, log, 1)}"
        case Verb.LIMIT:
            yield "its time ran out" if row.payload == b"\xc3" else "the block ended in time"
        case Verb.START:
            if child is not None:
                yield f"started {run_id(child.id)} on thread {clean(child.thread_id)}, now {standing(child)}"
        case Verb.RESULT:
            if child is not None:
                yield f"the result of {run_id(child.id)}"
        case Verb.STEP | Verb.TIMER:
            return
        case other:
            assert_never(other)


def asked_in_words(asked: Interrupt, log: RunLog) -> str:
    """The question: `asked i42 of alice: {"buy": "tea"}`."""
    whom = f" of {clean(asked.assignee)}" if asked.assignee else ""
    needs = budget_words.need(budget_words.payload_of(asked))
    return f"asked {interrupt_id(asked.id)}{whom}: {needs or _head(asked.payload, log)}"


def answered_in_words(asked: Interrupt, row: Checkpoint | None, log: RunLog) -> str:
    """What came of it; `row` is the record of that."""
    match asked.state:
        case InterruptState.ANSWERED:
            after = "" if asked.answered_at is None else f" after {duration(asked.answered_at - asked.created_at)}"
            who = f"{clean(asked.answered_by)} answered" if asked.answered_by else "answered"
            if (what := _of_budget(asked, log)) is not None:
                return f"{clean(asked.answered_by or 'somebody')} {what}{after}"
            return f"{who}{after}: {_head(asked.answer or b'', log)}"
        case InterruptState.EXPIRED:
            default = "" if row is None or row.failed else f"; its default stands: {_head(row.payload, log)}"
            return f"nobody answered in time{default}"
        case InterruptState.WITHDRAWN:
            if (setting := budget_words.setting(asked, log.budgets)) is not None and log.cancelled is None:
                closed = budget_words.closed_at(asked, log.budgets)
                after = "" if closed is None else f" after {duration(closed - asked.created_at)}"
                return f"withdrawn: {setting}{after}"
            return "withdrawn: nobody waits for an answer any more"
        case InterruptState.OPEN:
            return "still open"
        case _:
            assert_never(asked.state)


def _of_budget(asked: Interrupt, log: RunLog) -> str | None:
    """What was answered to a question about a budget."""
    if budget_words.about(asked) is None or asked.answer is None or spilled(asked.answer):
        return None
    return budget_words.said(log.value(asked.answer))


def tally(children: Iterable[Run]) -> str:
    """How many children there are, and how they stand: `200 children: 150 completed, 30 waiting, 20 queued`."""
    counted = Counter(child.state for child in children)
    states = ", ".join(f"{number} {state.value}" for state, number in counted.most_common())
    total = counted.total()
    return f"{total:,} {'child' if total == 1 else 'children'}: {states}"


def standing(child: Run) -> str:
    """A child's state, in a word or two."""
    if child.state is RunState.HELD:
        return f"held ({clean(child.reason or '')})"
    return child.state.value


def _head(payload: bytes, log: RunLog, part: int | None = None) -> str:
    """The beginning of a value, as JSON; of one of its parts, where that is asked for."""
    if spilled(payload) and payload not in log.loaded:
        return "(large; --full shows it)"
    value = log.value(payload)
    text = json.dumps(value if part is None else value[part], ensure_ascii=False)
    return clean(text if len(text) <= HEAD_CHARS else text[:HEAD_CHARS] + "…")
