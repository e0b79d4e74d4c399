"""The pages of `perdure effects`: the ledger, and one effect with its audit and what can be done about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from perdure.cli.interrupt_pages import print_value, us
from perdure.cli.paging import print_more
from perdure.cli.remedies import command, told
from perdure.cli.waiting_documents import jsonable
from perdure.client.effects import EffectInfo
from perdure.core.effects import Effect, EffectState, effect_id
from perdure.core.records import Interrupt, InterruptState, Run, RunState, interrupt_id, run_id
from perdure.core.states import TERMINAL
from perdure.terminal.page import Middle, Page, Tail, header, state, table
from perdure.terminal.text import ago, clean, clean_block, first_line, moment, short_type

HEAD_CHARS: Final = 200
"""Of a value in the list: more than a column shows."""

FOR_PEOPLE: Final = (EffectState.UNKNOWN, EffectState.UNDO_FAILED)
"""States that a person may have to end."""

_POLICIES: Final = {
    "retry": "retry: it is dispatched again, under the same key",
    "verify": "verify: its provider is asked",
    "ask": "ask: a person is asked",
    "fail": "fail: it raises OutcomeUnknown in the agent",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """An effect with what is around it."""

    info: EffectInfo
    run: Run
    question: Interrupt | None
    """About it, where its run has asked."""


def print_effects(page: Page, infos: Sequence[EffectInfo], *, state: str | None, now_us: int, more: bool) -> None:
    """The ledger."""
    if not infos:
        page.say(Text("no effects" if state is None else f"no {state} effects", style="dim"))
        return
    rows = table("id", "state", "effect", "agent", "run", "tries", "when", "outcome", right=("tries",), give=_GIVE)
    for info in infos:
        rows.add_row(
            info.id,
            _state(info),
            Middle(info.key, most=28),
            Middle(info.agent, most=20),
            info.run_id,
            str(info.attempt),
            ago(us(info.settled_at or info.intended_at), now_us=now_us),
            _outcome(info),
        )
    page.print(rows)
    if more:
        print_more(page, infos[-1].id)


_GIVE: Final = ("effect", "agent", "outcome")


def _state(info: EffectInfo) -> Text:
    return state(info.state.value)


def _outcome(info: EffectInfo) -> Tail:
    """What came of it, at a glance."""
    if info.state in FOR_PEOPLE:
        return Tail(first_line(info.note or ""), "yellow")
    if info.error is not None:
        return Tail(f"{short_type(info.error.type)}: {first_line(info.error.message)}", "red")
    if info.state in (EffectState.DONE, EffectState.UNDONE, EffectState.UNDOING):
        return Tail(json.dumps(jsonable(info.result), ensure_ascii=False)[:HEAD_CHARS])
    return Tail(first_line(info.note or ""), "dim")


# -- one ------------------------------------------------------------------------------------------------------------


def print_effect(page: Page, standing: Standing, *, now_us: int) -> None:
    """One effect."""
    info = standing.info
    page.say(Text(info.id, "bold"), "  ", Text(clean(info.name), "bold"), "  ", _state(info))
    page.print(header(_header_rows(info, now_us=now_us)))
    page.say()
    page.say(Text("arguments", "bold"))
    print_value(page, info.arguments)
    page.say()
    _print_outcome(page, info)
    page.say(Text("what was written of it", "bold"))
    _print_audit(page, info)
    if (remedy := what_to_do(standing)) is not None:
        page.say()
        page.print(Text.assemble(("what to do: ", "bold"), told(remedy)), overflow="fold")


def _header_rows(info: EffectInfo, *, now_us: int) -> Iterator[tuple[str, str | Text]]:
    yield "run", f"{info.run_id}, agent {clean(info.agent)}"
    yield "thread", clean(info.thread_id)
    yield "step", f"{clean(info.key)} (super-step {info.super_step})"
    yield "key", f"{clean(info.idempotency_key)}, what its provider knows it by"
    yield "if unknown", _POLICIES.get(info.policy, clean(info.policy))
    tried = f"{info.attempt}×"
    tried += f", its undo {info.undo_attempt}×" if info.undo_attempt else ", it has an undo" if info.undoable else ""
    yield "dispatched", tried
    yield "intended", f"{moment(us(info.intended_at))}, {ago(us(info.intended_at), now_us=now_us)}, by {info.worker}"
    if info.settled_at is not None:
        yield "settled", f"{moment(us(info.settled_at))}, {ago(us(info.settled_at), now_us=now_us)}"
    if info.tenant:
        yield "tenant", clean(info.tenant)


def _print_outcome(page: Page, info: EffectInfo) -> None:
    if info.note is not None:
        who = f" ({clean(info.by)})" if info.by else ""
        page.print(Text.assemble(("note: ", "bold"), clean_block(info.note), who), overflow="fold")
        page.say()
    if info.error is not None and info.state is not EffectState.UNKNOWN:
        page.say(Text("error: ", "bold red"), short_type(info.error.type))
        page.print(Text(clean_block(info.error.message)), overflow="fold")
        page.say()
    elif info.state in (EffectState.DONE, EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED):
        page.say(Text("result", "bold"))
        print_value(page, info.result)
        page.say()


def _print_audit(page: Page, info: EffectInfo) -> None:
    rows = table("at", "state", "try", "who", "note", right=("try",), give=("who", "note"))
    for event in info.events:
        rows.add_row(
            moment(us(event.at)),
            state(event.state.value),
            str(event.attempt),
            Middle(" for ".join(each for each in (event.worker, event.by) if each) or "a person", most=24),
            Tail(first_line(event.note or ""), "dim"),
        )
    page.print(rows)
    written = info.events[-1].state if info.events else info.state
    if written is EffectState.INTENDED and info.state is EffectState.UNKNOWN:
        page.say(Text("unknown since: who intended it holds its run no more", style="dim"))


# -- what to do -----------------------------------------------------------------------------------------------------


def what_to_do(standing: Standing) -> str | None:
    """For an effect that waits for a person: the commands that end that."""
    info, run = standing.info, standing.run
    if info.state is EffectState.UNKNOWN:
        find_out = f"find out at its provider, then `perdure effects resolve {info.id} --happened --result JSON` or "
        find_out += f"`perdure effects resolve {info.id} --did-not-happen`"
        asked = standing.question
        if asked is not None and asked.state is InterruptState.OPEN:
            return f"{find_out}; that answers question {interrupt_id(asked.id)}, with which its run waits"
        if run.state in TERMINAL or run.state is RunState.HELD:
            return find_out
        return f"nothing yet: run {run_id(run.id)} is {run.state.value}, and sees to it"
    if info.state is EffectState.UNDO_FAILED:
        by_hand = f"undo it by hand, and say so: `perdure effects resolve {info.id} --undone`"
        if run.state in (RunState.FAILED, RunState.CANCELLED):
            return f"try again: `perdure retry {run_id(run.id)} --undo`; or {by_hand}"
        return by_hand if run.state in TERMINAL else f"when run {run_id(run.id)} has ended, {by_hand}"
    return None


def print_resolved(page: Page, standing: Standing) -> None:
    """What the ledger says now, and what its run does with that."""
    info, run = standing.info, standing.run
    name = run_id(run.id)
    if info.state is EffectState.UNKNOWN:  # told to its run, which has not read it yet
        asked = "" if standing.question is None else f", by the answer to {interrupt_id(standing.question.id)}"
        page.print(Text(told(f"{info.id} is told to its run{asked}; {name} is {run.state.value}")), overflow="fold")
        return
    who = f" by {clean(info.by)}" if info.by else ""
    page.print(Text(f"{info.id} ({clean(info.name)}) is {info.state.value}{who}"), overflow="fold")
    if (then := _then(info, run)) is not None:
        page.print(Text(told(f"{name} is {run.state.value}; {then}")), overflow="fold")


def _then(info: EffectInfo, run: Run) -> str | None:
    name = run_id(run.id)
    if run.state is RunState.HELD:
        return f"`perdure release {name}` sends it on"
    if run.state not in (RunState.FAILED, RunState.CANCELLED):
        return None
    if run.undoing:
        undoes = info.state is EffectState.DONE and info.undoable
        return f"`perdure retry {name} --undo` undoes this one too" if undoes else None
    goes_on = "with that result" if info.state is EffectState.DONE else "and dispatches it again, under the same key"
    also = f"; `perdure retry {name} --undo` undoes it" if info.state is EffectState.DONE and info.undoable else ""
    return f"`perdure retry {name}` sends it on, {goes_on}{also}"


# -- on the page of its run -----------------------------------------------------------------------------------------


def print_open(page: Page, rows: Sequence[Effect]) -> None:
    """A line for each effect of a run that waits for a person."""
    for row in rows:
        name = effect_id(row.id)
        look = command(f"perdure effects show {name}")
        page.say(state(row.state.value), Text(f"  {clean(row.key)}", "bold"), f"  {look}: {first_line(row.note or '')}")
