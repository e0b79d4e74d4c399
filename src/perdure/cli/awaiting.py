"""What a parked run waits for, wait by wait, and what a person can do about each. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from perdure.cli import budget_words
from perdure.cli.verbs import for_budget, name_of, try_before
from perdure.core.display import render
from perdure.core.limits import NEVER_US
from perdure.core.records import Interrupt, Run, RunState, Wait, WaitKind, interrupt_id, run_id
from perdure.core.snapshot import spilled
from perdure.terminal.text import away, clean, duration, moment

SHOWN_MAX: Final = 3
"""Waits of one run that are named; the others are counted."""

QUESTION_CHARS: Final = 60
"""Of a question, where it is named."""


@dataclass(frozen=True, slots=True)
class Around:
    """The rows that waits point to."""

    questions: Mapping[int, Interrupt] = field(default_factory=dict)
    runs: Mapping[int, Run] = field(default_factory=dict)
    threads: Mapping[int, str] = field(default_factory=dict)
    """The ids that users know of threads."""


def in_words(waits: Iterable[Wait], around: Around, *, now_us: int) -> str:
    """All of them, in a sentence's half."""
    return _joined([sentence(wait, around, now_us=now_us) for wait in waits], " and ")


def in_short(waits: Iterable[Wait], around: Around, *, now_us: int) -> str:
    """All of them, for a column."""
    return _joined([_short(wait, around, now_us=now_us) for wait in waits], ", ")


def asked_text(asked: Interrupt | None) -> str:
    """The beginning of a question, as it stands behind its name; empty where it lies elsewhere, being large."""
    if asked is None or spilled(asked.payload) is not None:
        return ""
    if (needs := budget_words.need(budget_words.payload_of(asked))) is not None:
        return needs
    payload = render(asked.payload, QUESTION_CHARS)
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    line = " ".join(clean(text).split())
    return line if len(line) <= QUESTION_CHARS else line[: QUESTION_CHARS - 1] + "…"


def sentence(wait: Wait, around: Around, *, now_us: int) -> str:
    """One wait: `an answer to i42 from alice, until 2026-12-01 09:00:00 +0100`."""
    if wait.ready and wait.due and wait.kind is not WaitKind.TIMER:
        return f"{_what(wait, around)}, whose time is over"
    if wait.ready:
        return f"{_what(wait, around)}, which has come"
    if wait.kind is WaitKind.TIMER or wait.due_at is None:
        return _what(wait, around, now_us=now_us)
    return f"{_what(wait, around)}, for {duration(wait.due_at - now_us)} at most"


def remedy(run: Run, waits: Iterable[Wait]) -> str | None:
    """The command that ends the first of the waits that a person can end."""
    order = (WaitKind.ANSWER, WaitKind.MESSAGE, WaitKind.RUN, WaitKind.ROOM)
    found = sorted((wait for wait in waits if wait.kind in order), key=lambda wait: order.index(wait.kind))
    return _remedy(run, found[0]) if found else None


def _remedy(run: Run, wait: Wait) -> str | None:
    match wait.kind:
        case WaitKind.ANSWER:
            return f"answer it: `perdure interrupts show {interrupt_id(wait.target or 0)}` says how"
        case WaitKind.MESSAGE:
            thread = shlex.quote(clean(run.thread_id))
            label = f" --label {shlex.quote(clean(wait.labels[0]))}" if wait.labels else ""
            return f"send one: `perdure messages send {thread} JSON{label}`"
        case WaitKind.RUN:
            return f"look at that one: `perdure runs show {run_id(wait.target or 0)}`"
        case _:
            return None


def _what(wait: Wait, around: Around, *, now_us: int = 0) -> str:
    target = wait.target or 0
    match wait.kind:
        case WaitKind.TIMER:
            return _timer(wait, now_us=now_us)
        case WaitKind.ANSWER:
            asked = around.questions.get(target)
            whom = f" from {clean(asked.assignee)}" if asked is not None and asked.assignee else ""
            text = asked_text(asked)
            return f"an answer to {interrupt_id(target)}{whom}" + (f" ({text})" if text else "")
        case WaitKind.MESSAGE:
            return f"a message ({' or '.join(clean(label) for label in wait.labels)})" if wait.labels else "a message"
        case WaitKind.RUN:
            other = around.runs.get(target)
            return f"run {run_id(target)}" + ("" if other is None else f" ({_standing(other)})")
        case WaitKind.ROOM:
            return f"room in the mailbox of thread {clean(around.threads.get(target, str(target)))!r}"
        case _:
            assert_never(wait.kind)


def _timer(wait: Wait, *, now_us: int) -> str:
    again, room = try_before(wait.key), for_budget(wait.key)
    plain = "the end of a time limit" if name_of(wait.key) == "timeout" else "its time"
    what = plain if again is None else f"another try of {clean(again[0])}"
    if room is not None:
        what = f"another look at the budget of {clean(room)}, whose rest is in flight"
    if wait.due_at is None or not now_us:
        return what
    return f"{what}, {away(wait.due_at, now_us=now_us)} ({moment(wait.due_at)})"


def _standing(run: Run) -> str:
    return f"{run.state.value}: {clean(run.reason or '')}" if run.state is RunState.HELD else run.state.value


def _short(wait: Wait, around: Around, *, now_us: int) -> str:
    match wait.kind:
        case WaitKind.TIMER:
            return "a time" if wait.due_at in (None, NEVER_US) else f"due {away(wait.due_at or 0, now_us=now_us)}"
        case WaitKind.ANSWER:
            asked = around.questions.get(wait.target or 0)
            text = asked_text(asked)
            if asked is not None and text and budget_words.about(asked) is not None:
                return f"{interrupt_id(asked.id)}: {text}"
            return f"answer to {interrupt_id(wait.target or 0)}" + (f": {text}" if text else "")
        case WaitKind.MESSAGE:
            return f"message {'|'.join(clean(label) for label in wait.labels)}".rstrip()
        case WaitKind.RUN:
            return f"run {run_id(wait.target or 0)}"
        case WaitKind.ROOM:
            return "room in a mailbox"
        case _:
            assert_never(wait.kind)


def _joined(words: list[str], last: str) -> str:
    """ "a, b and c", or "a, b, c and 4 more" """
    shown, rest = words[:SHOWN_MAX], len(words) - SHOWN_MAX
    if rest > 0:
        return f"{', '.join(shown)} and {rest} more"
    return f"{', '.join(shown[:-1])}{last}{shown[-1]}" if len(shown) > 1 else "".join(shown)
