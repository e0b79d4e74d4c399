"""The ledger for people: what agents have done to the outside world, and saying what became of it.

Of an effect whose outcome nobody knows, a person may find out at its provider, and say so. Where its run waits for
just that (`on_unknown="ask"`), what is said answers the run's question, and the run goes on with it. Where the run is
over or held, the ledger is told, and whoever sends the run on finds it there. While a worker is at the effect nobody
else may say anything of it. Saying the same again changes nothing; saying something else is refused, with what stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from perdure.client import inbox
from perdure.client.connection import Client
from perdure.client.requests import agent_name, page_limit, run_number
from perdure.core.answers import canonical_bytes
from perdure.core.effects import RESOLVED, Effect, EffectEvent, EffectFilter, EffectState, Resolution, effect_id
from perdure.core.errors import printable
from perdure.core.failures import decode_error
from perdure.core.keys import ask_place
from perdure.core.records import (
    ErrorInfo,
    Interrupt,
    InterruptState,
    Run,
    RunState,
    WaitKind,
    WorkerState,
    interrupt_id,
    parse_id,
    run_id,
    worker_id,
)
from perdure.core.shown import shown as in_short
from perdure.core.snapshot import spill
from perdure.core.states import TERMINAL
from perdure.core.verdicts import DidNotHappen, Happened, answer_of
from perdure.errors import Conflict, NotFound, NotSerializable, UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.effect import effect_of
from perdure.runtime.info import maybe, moment, plain
from perdure.runtime.patience import patiently
from perdure.runtime.payloads import load_payload
from perdure.runtime.settings import check_name
from perdure.runtime.starting import REASON_CHARS_MAX, checked_id
from perdure.store.protocol import Store

_HAPPENED: Final = frozenset({EffectState.DONE, EffectState.UNDOING, EffectState.UNDONE, EffectState.UNDO_FAILED})
"""In which an outcome is the effect's result; in the others it is an error."""

_AT_REST: Final = TERMINAL | {RunState.HELD}


@dataclass(frozen=True, slots=True)
class EffectEventInfo:
    """One write to an effect's row."""

    at: datetime
    state: EffectState
    attempt: int
    """Which try of the effect it is of; in states of its undo, which try of that."""
    worker: str | None
    """Whose write it was; None where a person's."""
    by: str | None
    """Who said so, where a person did."""
    note: str | None


@dataclass(frozen=True, slots=True)
class EffectInfo:
    """An effect, as it was when it was read."""

    id: str
    """Its name: `e42`."""
    run_id: str
    thread_id: str
    agent: str
    name: str
    key: str
    """The step's key in its super-step."""
    super_step: int
    state: EffectState
    """`intended`, `unknown`, `absent`, `failed`, `done`, `undoing`, `undone` or `undo_failed`."""
    arguments: Any
    """Plain data: a list, or a dict with `args` and `kwargs` where some were given by name."""
    result: Any
    """Plain data, where it happened."""
    error: ErrorInfo | None
    """What its newest outcome on record said, where that is an error."""
    idempotency_key: str
    """What its provider knows it by."""
    policy: str
    """`retry`, `verify`, `ask` or `fail`: what is done where its outcome is unknown."""
    undoable: bool
    attempt: int
    """How often it was dispatched."""
    undo_attempt: int
    note: str | None
    """Why it is unknown, or how it was found out."""
    by: str | None
    """Who said so, where a person did."""
    worker: str
    """Which intended it last."""
    intended_at: datetime
    settled_at: datetime | None
    tenant: str | None
    events: tuple[EffectEventInfo, ...] = ()
    """All that was written of it, in order: the audit. Empty in a listing."""


# -- reading --------------------------------------------------------------------------------------------------------


def effect_filter(
    *, state: str | None, run_id: str | None, thread_id: str | None, agent: Agent[..., Any] | str | None,
    name: str | None, tenant: str | None, undoable: bool | None, limit: int, after: str | None,
) -> EffectFilter:  # fmt: skip
    """Which effects to list; a name that nothing can have is refused."""
    if undoable is not None and not isinstance(undoable, bool):
        raise UsageError(f"undoable is {in_short(undoable)}; it is True, False or None")
    return EffectFilter(
        state=None if state is None else _state(state),
        run=None if run_id is None else run_number(run_id),
        thread_id=None if thread_id is None else checked_id("a thread id", thread_id),
        agent=None if agent is None else agent_name(agent),
        name=None if name is None else check_name("an effect's name", name),
        tenant=None if tenant is None else check_name("a tenant", tenant),
        undoable=undoable,
        limit=page_limit(limit),
        after=None if after is None else effect_number(after),
    )


async def listed(client: Client, where: EffectFilter) -> list[EffectInfo]:
    """A page of the ledger."""
    return [await _info(client.store, row) for row in await client.store.effects(where)]


async def shown(client: Client, effect: str) -> EffectInfo:
    """One effect, with all that was written of it."""
    row = await _row(client, effect_number(effect))
    return await _info(client.store, row, await client.store.effect_events(row.id))


def effect_number(name: object) -> int:
    """The number behind an effect's id."""
    number = parse_id("e", name) if isinstance(name, str) else None
    if number is None:
        raise UsageError(
            f"{in_short(name)} is not an effect's id; they look like e42 (`perdure effects list` shows them)"
        )
    return number


# -- saying what became of one ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """What a person says of an effect."""

    state: EffectState
    """What the ledger calls that: `done`, `absent` or `undone`."""
    result: bytes | None
    """In its canonical form, where the effect happened."""
    by: str | None
    note: str | None


def finding(*, happened: bool | None, undone: bool, result: Any, by: str | None, note: str | None) -> Finding:
    """What is said, checked."""
    said: tuple[object, ...] = (undone, False if happened is None else happened)
    if not all(isinstance(each, bool) for each in said):
        given = f"happened is {in_short(happened)} and undone is {in_short(undone)}"
        raise UsageError(f"{given}; give happened=True or False, or undone=True")
    if undone == (happened is not None):
        both = "both were given" if undone else "neither was given"
        raise UsageError(f"say happened=True (with its result=), happened=False, or undone=True of its undo; {both}")
    if result is not None and not happened:
        raise UsageError("result= goes with happened=True: what did not happen has no result")
    state = EffectState.UNDONE if undone else EffectState.DONE if happened else EffectState.ABSENT
    return Finding(
        state, canonical_bytes(result) if happened else None,
        None if by is None else check_name("by", by), None if note is None else _note(note),
    )  # fmt: skip


async def resolve(client: Client, effect: str, found: Finding) -> EffectInfo:
    """Say what became of an effect; returns it as it is then."""
    store = client.store
    row = await _row(client, effect_number(effect))
    if await _stands(store, row, found):
        return await shown(client, effect)
    if found.state not in RESOLVED.get(row.state, ()):
        raise _no_longer(row, found)
    result = _typed(row, found)
    run = await _run(store, row)
    if run.state not in _AT_REST:
        await _answer(client, row, run, found)
        return await shown(client, effect)
    if found.state is EffectState.ABSENT:
        await _outlived(store, row)
    outcome, blobs = (None, ()) if result is None else spill(result)
    told = Resolution(row.id, found.state, outcome, found.by, found.note)
    after = await patiently("resolve", lambda: store.resolve(told, blobs))
    assert after is not None, f"{effect} has gone"
    if not await _stands(store, after, found):
        run = await _run(store, after)
        raise _in_hand(after, run) if run.state not in _AT_REST else _no_longer(after, found)
    return await shown(client, effect)


async def _outlived(store: Store, row: Effect) -> None:
    """Refuse while a worker that was taken over early, and has not said what became of its try, may still dispatch it:
    that it did not happen would not stay true."""
    if row.lease_until <= await store.now_us():
        return
    events = await store.effect_events(row.id)
    intended = max((each.rev for each in events if each.state is EffectState.INTENDED), default=0)
    if any(each.rev > intended and (each.worker, each.fence) == (row.worker, row.fence) for each in events):
        return
    workers = await store.workers(alive=False)
    if any(each.id == row.worker and each.state is WorkerState.DEAD for each in workers):
        raise _too_early(row)


async def _stands(store: Store, row: Effect, found: Finding) -> bool:
    """Whether the ledger says so already."""
    if found.state is EffectState.ABSENT:
        return row.state in (EffectState.ABSENT, EffectState.FAILED)
    if row.state is not found.state or found.state is EffectState.UNDONE:
        return row.state is found.state
    assert row.outcome is not None and found.result is not None
    recorded = await load_payload(store, row.thread, row.outcome)
    return canonical_bytes(plain(recorded)) == found.result or _equal(row, recorded, found)


def _equal(row: Effect, recorded: bytes, found: Finding) -> bool:
    """Whether two results are the same to the effect that this process knows: one may say what the other leaves out."""
    known = effect_of(row.code)
    try:
        return known is not None and known.codec.decode(recorded) == known.codec.decode(found.result or b"")
    except NotSerializable:
        return False


def _typed(row: Effect, found: Finding) -> bytes | None:
    """The result as the effect itself would have recorded it, where this process knows what it declares; else as it was
    given, and the worker that goes on with the run will look at it."""
    known = effect_of(row.code)
    if found.result is None or known is None:
        return found.result
    try:
        return known.codec.encode(known.codec.from_builtins(plain(found.result)))
    except NotSerializable as error:
        raise NotSerializable(f"{_named(row)} has another result: {error}", **error.ids) from None


async def _answer(client: Client, row: Effect, run: Run, found: Finding) -> None:
    """Answer the question about the effect that its run waits with."""
    asked = None if found.state is EffectState.UNDONE else await open_question(client.store, row)
    if asked is None:
        raise _in_hand(row, run)
    if found.note is not None:
        raise UsageError(
            f"{_named(row)} is what question {interrupt_id(asked.id)} is about, and an answer to that has no note; "
            "leave note out"
        )
    happened = found.state is EffectState.DONE
    answer = answer_of(Happened(plain(found.result or b"")) if happened else DidNotHappen())
    await inbox.resume(client, interrupt_id(asked.id), answer, by=found.by, digest=None)


async def open_question(store: Store, row: Effect) -> Interrupt | None:
    """The question about this effect that its run waits with; it may have been answered, and not have been read yet."""
    place = ask_place(row.key, row.attempt)
    for wait in await store.waits([row.run]):
        if wait.super_step != row.super_step or not wait.key.startswith(place):  # what was asked again is beside it
            continue
        if wait.kind is WaitKind.ANSWER and wait.target is not None:
            for question in await store.get_interrupts([wait.target]):
                if question.state in (InterruptState.OPEN, InterruptState.ANSWERED):
                    return question
    return None


# -- refusals -------------------------------------------------------------------------------------------------------


_WHY_NOT: Final = {
    EffectState.INTENDED: "it is in flight; wait until its try has ended",
    EffectState.UNKNOWN: "nobody knows yet whether it happened; say happened=True or happened=False",
    EffectState.ABSENT: "it did not happen; its run dispatches it again, under the same key",
    EffectState.FAILED: "its error on record says that it did not happen; a retry of its run dispatches it again",
    EffectState.DONE: "its result is on record, and stands; what is to be taken back is undone by its run's undo",
    EffectState.UNDOING: "its undo is under way; wait until that has ended",
    EffectState.UNDONE: "it happened, and was undone",
    EffectState.UNDO_FAILED: "it happened, and its undo failed; undo it by hand and say undone=True",
}


def _no_longer(row: Effect, found: Finding) -> Conflict:
    """Why an effect in this state cannot become what was said."""
    lost = "with another result" if row.state is found.state else f"and cannot become {found.state}"
    return Conflict(
        f"{_named(row)} is {row.state}, {lost}: {_WHY_NOT[row.state]} "
        f"(`perdure effects show {effect_id(row.id)}`)",
        effect_id=effect_id(row.id), run_id=run_id(row.run), state=row.state,
    )  # fmt: skip


def _too_early(row: Effect) -> Conflict:
    """Why nobody may say yet that an effect did not happen."""
    until = moment(row.lease_until)
    return Conflict(
        f"{_named(row)} may still happen: worker {worker_id(row.worker)}, which intended it, was taken over, and may "
        f"dispatch it until its lease is over, at {until.isoformat(timespec='seconds')}; look at its provider after "
        "that, and say so then",
        effect_id=effect_id(row.id), run_id=run_id(row.run), state=row.state, until=until,
    )  # fmt: skip


def _in_hand(row: Effect, run: Run) -> Conflict:
    """Why nobody may say anything of an effect whose run goes on."""
    doing = "undoes" if row.state is EffectState.UNDO_FAILED else "finds out about"
    return Conflict(
        f"{_named(row)} is {row.state}, and its run is {run.state}: a worker {doing} its effects. Wait until the run "
        f"has asked, has ended or is held (`perdure runs show {run_id(run.id)}`)",
        effect_id=effect_id(row.id), run_id=run_id(run.id), state=row.state, run_state=run.state,
    )  # fmt: skip


async def _row(client: Client, number: int) -> Effect:
    for row in await client.store.get_effects([number]):
        return row
    name = effect_id(number)
    raise NotFound(f"no effect {name} in {client.store.url}; `perdure effects list` shows those there are", id=name)


async def _run(store: Store, row: Effect) -> Run:
    (run,) = await store.get_runs([row.run])
    return run


# -- views ----------------------------------------------------------------------------------------------------------


async def _info(store: Store, row: Effect, events: list[EffectEvent] | None = None) -> EffectInfo:
    """A view of an effect."""
    happened = row.state in _HAPPENED
    outcome = None if row.outcome is None else await load_payload(store, row.thread, row.outcome)
    return EffectInfo(
        id=effect_id(row.id), run_id=run_id(row.run), thread_id=row.thread_id, agent=row.agent, name=row.name,
        key=row.key, super_step=row.super_step, state=row.state,
        arguments=_arguments(plain(await load_payload(store, row.thread, row.arguments))),
        result=plain(outcome) if happened and outcome is not None else None,
        error=decode_error(outcome) if not happened and outcome is not None else None,
        idempotency_key=row.idempotency_key, policy=row.policy, undoable=row.undoable, attempt=row.attempt,
        undo_attempt=row.undo_attempt, note=row.note, by=row.by, worker=worker_id(row.worker),
        intended_at=moment(row.intended_at), settled_at=maybe(row.settled_at), tenant=row.tenant,
        events=tuple(_event(event) for event in events or ()),
    )  # fmt: skip


def _event(row: EffectEvent) -> EffectEventInfo:
    return EffectEventInfo(
        moment(row.at), row.state, row.attempt, None if row.worker is None else worker_id(row.worker), row.by, row.note
    )


def _arguments(recorded: Any) -> Any:
    """As a call shows them."""
    match recorded:
        case [list() as args, dict() as kwargs]:
            return {"args": args, "kwargs": kwargs} if kwargs else args
        case other:
            return other


def _named(row: Effect) -> str:
    return f"effect {effect_id(row.id)} ({row.key!r} of run {run_id(row.run)}, agent {row.agent})"


def _note(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"note is {in_short(text)}; say in a few words how it was found out, or leave it out")
    return printable(text, REASON_CHARS_MAX)


def _state(text: str) -> EffectState:
    try:
        return EffectState(text)
    except ValueError:
        raise UsageError(f"{in_short(text)} is not a state of an effect; they are: {', '.join(EffectState)}") from None
