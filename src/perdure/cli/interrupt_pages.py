"""The pages of `perdure interrupts`: the inbox, and one question with the way to answer it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from rich.text import Text

from perdure.cli.budget_questions import asks_for_budget, print_choices
from perdure.cli.budget_words import need, said
from perdure.cli.paging import print_more
from perdure.cli.remedies import command
from perdure.cli.schema_words import example, in_words
from perdure.cli.waiting_documents import jsonable
from perdure.client.inbox import InterruptInfo
from perdure.core.records import InterruptState
from perdure.core.times import due_us
from perdure.terminal.page import Middle, Page, Tail, header, state, table, value_lines
from perdure.terminal.text import ago, away, clean, clean_block, duration, moment

HEAD_CHARS: Final = 200
"""Of a question in the list: more than a column shows."""

NAME_DEFAULT: Final = "interrupt"

_ON_TIMEOUT: Final = {
    "raise": "it raises TimedOut in the agent",
    "cancel": "its run is cancelled",
    "default": "its default stands for an answer",
}


def print_interrupts(page: Page, infos: Sequence[InterruptInfo], *, state: str | None, now_us: int, more: bool) -> None:
    """The inbox; of questions that are closed, what came of them."""
    if not infos:
        page.say(Text("no questions" if state is None else f"no {state} questions", style="dim"))
        return
    last = "expires" if state == InterruptState.OPEN else "outcome"
    rows = table(
        "id", "agent", "thread", "asked", "question", "for", last, give=("agent", "thread", "question", "for", last)
    )
    for info in infos:
        rows.add_row(
            info.id,
            Middle(info.agent, most=20),
            Middle(info.thread_id, most=24),
            ago(us(info.created_at), now_us=now_us),
            Tail(head(info), most=60),
            Middle(info.assignee or "", most=16),
            _expires(info, now_us=now_us) if state == InterruptState.OPEN else outcome(info, now_us=now_us),
        )
    page.print(rows)
    if more:
        print_more(page, infos[-1].id)


def head(info: InterruptInfo) -> str:
    """The beginning of a question, with its name where it was given one."""
    if asks_for_budget(info) and (needs := need(info.payload)) is not None:
        return needs
    if (asked := _of_effect(info)) is not None:
        return asked[:HEAD_CHARS]
    text = info.payload if isinstance(info.payload, str) else json.dumps(jsonable(info.payload), ensure_ascii=False)
    named = "" if info.name == NAME_DEFAULT else f"{info.name}: "
    return (named + text)[:HEAD_CHARS]


def _of_effect(info: InterruptInfo) -> str | None:
    """The question what became of an effect, which has the same words for every one: so what tells it from others."""
    match info.payload:
        case {"effect": str() as effect, "name": str() as name, "why": str() as why} if info.name.startswith("effect:"):
            return f"did {name} happen ({effect})? {why}"
        case _:
            return None


def _expires(info: InterruptInfo, *, now_us: int) -> Text:
    if info.run_cancel is not None:
        return Text("run to be cancelled", "yellow")
    if info.expires_at is None:
        return Text("")
    left = us(info.expires_at) - now_us
    return Text(away(us(info.expires_at), now_us=now_us), "yellow" if left < 3_600_000_000 else "")


def outcome(info: InterruptInfo, *, now_us: int) -> Text | Tail:
    """What came of a question."""
    if info.state is not InterruptState.ANSWERED:
        return state(info.state.value)
    who = f"{info.answered_by}: " if info.answered_by else ""
    if asks_for_budget(info) and (words := said(info.answer)) is not None:
        return Tail(who + words, "green", most=40)
    return Tail(who + json.dumps(jsonable(info.answer), ensure_ascii=False)[:HEAD_CHARS], "green", most=40)


def print_interrupt(page: Page, info: InterruptInfo, *, now_us: int, setting: str | None = None) -> None:
    """One question; `setting`: who has set the budget that it was about."""
    page.say(Text(info.id, "bold"), "  ", Text(clean(info.name), "bold"), "  ", state(info.state.value))
    page.print(header(_header_rows(info, now_us=now_us)))
    page.say()
    page.say(Text("question", "bold"))
    print_value(page, info.payload)
    page.say()
    if info.state is InterruptState.OPEN:
        _print_how(page, info)
    elif info.state is InterruptState.ANSWERED:
        page.print(Text.assemble((f"{page.marks.ok} answered ", "bold green"), _by_whom(info)), overflow="fold")
        print_value(page, info.answer)
    else:
        page.print(Text(_closed(info, setting), "bold"), overflow="fold")
    if info.schema is not None and not asks_for_budget(info):
        page.say()
        page.say(Text("schema of an answer", "bold"))
        print_value(page, info.schema)


def _header_rows(info: InterruptInfo, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    yield "run", f"{info.run_id}, agent {clean(info.agent)}"
    yield "thread", clean(info.thread_id)
    yield "asked", f"{moment(us(info.created_at))}, {ago(us(info.created_at), now_us=now_us)}"
    yield "for", clean(info.assignee) if info.assignee else Text("anybody", style="dim")
    if info.run_cancel is not None:
        why = f"its run will be, whatever the answer is; why: {clean(info.run_cancel)}"
        yield "cancelled", Text(why, "yellow")
    if info.expires_at is not None and info.state in (InterruptState.OPEN, InterruptState.EXPIRED):
        then = _ON_TIMEOUT.get(info.on_timeout, clean(info.on_timeout))
        tail = f"; then {then}" if info.state is InterruptState.OPEN else ""
        yield (
            "expires" if info.state is InterruptState.OPEN else "expired",
            f"{moment(us(info.expires_at))}, {away(us(info.expires_at), now_us=now_us)}{tail}",
        )
    if info.tenant:
        yield "tenant", clean(info.tenant)
    yield "digest", info.digest


def _print_how(page: Page, info: InterruptInfo) -> None:
    """What to type."""
    if asks_for_budget(info):
        print_choices(page, info)
        return
    page.print(Text.assemble(("an answer is ", "bold"), clean(in_words(info.schema))), overflow="fold")
    page.print(Text.assemble(("to answer: ", "bold"), command(answer_command(info))), overflow="fold")


def answer_command(info: InterruptInfo) -> str:
    """A command that can be copied; with an answer of the right shape, where one is known."""
    shown = example(info.schema)
    return f"perdure resume {info.id} {'ANSWER' if shown is None else clean(shell_word(shown))}"


def shell_word(answer: str) -> str:
    """An answer in JSON as a word of a command line; a text that cannot be mistaken for JSON needs no quotes."""
    value = json.loads(answer)
    if isinstance(value, str) and value.isascii() and value.isidentifier() and value not in ("true", "false", "null"):
        return value
    return shlex.quote(answer)


def _by_whom(info: InterruptInfo) -> str:
    who = f"by {clean(info.answered_by)}" if info.answered_by else "by nobody in particular"
    if info.answered_at is None:
        return f"{who}:"
    after = duration(us(info.answered_at) - us(info.created_at))
    return f"{who} at {moment(us(info.answered_at))}, after {after}:"


def _closed(info: InterruptInfo, setting: str | None) -> str:
    if info.state is InterruptState.EXPIRED:
        return f"expired without an answer: {_ON_TIMEOUT.get(info.on_timeout, clean(info.on_timeout))}"
    if setting is not None:
        return f"withdrawn: {setting}"
    or_set = ", or the budget was set" if asks_for_budget(info) else ""
    return f"withdrawn: the branch that asked was cancelled, or its run has gone on or ended{or_set}"


def print_value(page: Page, value: Any) -> None:
    """A value, whole; a text of several lines as those."""
    is_text = isinstance(value, str) and "\n" in value
    lines = clean_block(value).splitlines() if is_text else value_lines(jsonable(value), page.width - 2)
    for line in lines:
        page.print(Text(f"  {line}", overflow="fold"))


def us(moment: datetime) -> int:
    """A time as the pages count it."""
    return due_us(moment)
