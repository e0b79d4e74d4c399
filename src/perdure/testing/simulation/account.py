"""The account at the end: every run has completed, and its log explains what it returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.codec import codec_for
from perdure.core.failures import decode_error
from perdure.core.records import HeldReason, Kind, Run, RunState, run_id
from perdure.testing.simulation import playbook
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.roles import Role
from perdure.testing.simulation.rules.annals import Pointer
from perdure.testing.simulation.rules.look import Log
from perdure.testing.simulation.rules.tries import step_of
from perdure.testing.simulation.weather import Weather, is_harmless
from perdure.testing.simulation.witness import Witness


def settle_accounts(witness: Witness, orders: list[Order], weather: Weather) -> None:
    """Everything has ended: say what does not fit."""
    arguments = {id: _arguments(witness, run) for id, run in witness.look.runs.items()}
    for wrong in (
        *_of_orders(witness, orders, arguments),
        *_of_results(witness, arguments),
        *_of_states(witness, arguments),
        *_of_held(witness, orders, weather),
        *_of_families(witness),
        *_of_undoing(witness),
        *_of_mail(witness),
    ):
        witness.blame(wrong)


def _arguments(witness: Witness, run: Run) -> tuple[Any, ...]:
    """What a run was started with, as its log says."""
    begins = [row for row in witness.look.logs.get(run.id, {}).values() if row.kind is Kind.BOUNDARY]
    if not begins:
        return ("nothing on record",)
    first = min(begins, key=lambda row: row.super_step)
    args, _ = playbook.ROLES[run.agent].agent.signature.decode(first.payload)
    return tuple(args)


def _of_orders(witness: Witness, orders: list[Order], arguments: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    """Every run was ordered, or is a child or a fork of one that was; every order with a key has at most one."""
    ordered = {(order.agent, order.args) for order in orders}
    by_key: dict[str, int] = {}
    for run in witness.look.runs.values():
        begotten = run.parent is not None or run.id in witness.annals.forks or run.id in witness.ordered
        if not begotten and (run.agent, arguments[run.id]) not in ordered:
            yield f"run {run_id(run.id)} was started by nobody"
        if run.key is not None and by_key.setdefault(run.key, run.id) != run.id:
            yield f"key {run.key!r} has {run_id(by_key[run.key])} and {run_id(run.id)}"
    for order in orders:
        told = witness.told[order.name]
        if told is not None and order.if_busy != "join" and arguments.get(told) != order.args:
            yield f"{order.name} with {order.args} was told of {run_id(told)}, which has {arguments.get(told)}"


def _of_results(witness: Witness, arguments: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    for run in witness.look.runs.values():
        role = playbook.ROLES[run.agent]
        if run.id in witness.failed and role.never_fails:
            yield f"run {run_id(run.id)} of {run.agent} failed, which its policy forbids"
        if run.state is not RunState.COMPLETED:
            continue  # it was cancelled, or has been overtaken, and is over
        log = witness.look.logs[run.id]
        if (
            wrong := _complaint(
                role, run, arguments[run.id], log, witness.result(run), forked=run.id in witness.annals.forks
            )
        ) is not None:
            yield wrong


def _complaint(role: Role, run: Run, args: tuple[Any, ...], log: Log, result: Any, *, forked: bool) -> str | None:
    """What is wrong with a completed run, if anything is."""
    values = {
        row.key: decode_error(row.payload) if row.failed else codec_for(Any).decode(row.payload)
        for row in log.values()
        if row.kind is Kind.STEP and row.super_step == run.super_step and run.agent != "heavy"
    }
    for key, value in () if forked else values.items():
        if isinstance(value, dict) and value.get("deployment", run.deployment) != run.deployment:
            return f"{run_id(run.id)} is pinned to {run.deployment}, and {key!r} was executed by {value['deployment']}"
    try:
        expected = role.expected(args, values)
    except (KeyError, AssertionError, StopIteration) as missing:
        return (
            f"run {run_id(run.id)} of {run.agent} returned {result!r}, and its log has no {missing}: {sorted(values)}"
        )
    if expected is not None and result != expected:
        return f"run {run_id(run.id)} of {run.agent}{args} returned {result!r}; its log makes {expected!r}"
    return None


def _of_states(witness: Witness, arguments: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    """A thread's state has an entry of each super-step that ended on it, in their order. A run begins with what its
    thread has, and goes on with its own, wherever it is executed. Where it was taken back, its thread has what it had
    before."""
    annals = witness.annals
    at: dict[Pointer, list[str]] = {(None, None): []}
    newest: dict[int, Pointer] = {}
    for id, super_step in annals.boundaries:
        run = witness.look.runs[id]
        if not playbook.ROLES[run.agent].tallies or id in annals.forks or run.thread in _forked(witness):
            continue
        if super_step == 0:
            newest[run.thread] = annals.bases[id]
            continue
        before = at[newest.get(run.thread, (None, None))] if super_step == 2 else at[id, super_step - 1]
        at[id, super_step] = [*before, f"{arguments[id][0]} {super_step - 2}"]
        newest[run.thread] = (id, super_step)
        if run.state is RunState.COMPLETED and super_step == run.super_step + 1:
            if (result := witness.result(run)) != at[id, super_step]:
                yield f"thread {run.thread_id} after {run_id(id)}: {result}, not {at[id, super_step]}"


def _forked(witness: Witness) -> set[int]:
    """Threads that began as forks: what their states were made of is another thread's story."""
    return {witness.look.runs[id].thread for id in witness.annals.forks}


def _of_families(witness: Witness) -> Iterator[str]:
    """Whom an agent has started is its child, and nobody was started twice at one place."""
    places: dict[tuple[int, str], int] = {}
    named: set[int] = set()
    for run in witness.look.runs.values():
        if (
            run.parent is not None
            and run.key is not None
            and places.setdefault((run.parent, run.key), run.id) != run.id
        ):
            yield f"run {run_id(run.parent)} has started {run.key!r} twice"
        forked = run.id in witness.annals.forks
        for row in witness.look.logs[run.id].values():
            if row.kind is Kind.STEP and not row.failed and step_of(row.key).startswith("start:"):
                child = witness.look.runs.get(codec_for(Any).decode(row.payload)[0])
                named.add(0 if child is None else child.id)
                if child is None or (child.parent != run.id and not forked):
                    yield f"run {run_id(run.id)} has {row.key!r} on record, and no such child: {child}"
    for run in witness.look.runs.values():
        parent = None if run.parent is None else witness.look.runs[run.parent]
        if parent is not None and parent.state is RunState.COMPLETED and run.id not in named:
            yield f"run {run_id(parent.id)} has completed, and has not recorded its child {run_id(run.id)}"


def _of_undoing(witness: Witness) -> Iterator[str]:
    """What a cancelled run had done, it has undone, once."""
    for run in witness.look.runs.values():
        undone_by = playbook.ROLES[run.agent].undone_by
        held = any(row.state is RunState.HELD for row in witness.annals.ends.get(run.id, ()))
        begun = run.attempt and not held and run.id not in witness.annals.too_late
        if undone_by is None or run.state is not RunState.CANCELLED or not begun:
            continue
        log = witness.look.logs[run.id]
        keys = {key for super_step, key in log if super_step == run.super_step}
        if "reserve" in keys and "result:kid" not in keys and undone_by not in keys:
            yield f"run {run_id(run.id)} was cancelled and has not undone what it had reserved: {sorted(keys)}"


def _of_mail(witness: Witness) -> Iterator[str]:
    """What was sent was received once, or is still there, or is a dead letter; and each sender's came in his order."""
    annals, look = witness.annals, witness.look
    there = {message.id for box in look.mail.values() for message in box.values()}
    for id, message in annals.sent.items():
        places = [id in annals.received, id in there, id in look.dead]
        if places.count(True) != 1:
            yield f"message m{id} to thread {message.thread} was received, is there, is dead: {places}"
    last: dict[tuple[int, str], int] = {}
    for message in sorted(annals.sent.values(), key=lambda each: (each.thread, each.seq)):
        said = codec_for(Any).decode(message.payload)
        if not isinstance(said, dict) or "by" not in said or message.id in annals.revived:
            continue
        sender = message.thread, f"{message.sender} {said['by']}"
        if last.get(sender, -1) >= said["n"]:
            yield f"message m{message.id}, number {said['n']} of {sender[1]}, came after number {last[sender]}"
        last[sender] = said["n"]


def _of_held(witness: Witness, orders: list[Order], weather: Weather) -> Iterator[str]:
    """Where only one run kills, it alone is held for it: what ran beside it is not taken for the culprit. (Not so where
    providers and recipients kill, for whoever calls them.)"""
    poisons = [order for order in orders if order.agent in (playbook.POISON.agent.name, "held")]
    calling = playbook.ACTING | playbook.DELIVERING | playbook.SPENDING
    if len(poisons) > 1 or not is_harmless(weather) or any(order.agent in calling for order in orders):
        return
    for run in witness.held:
        if run.reason == HeldReason.POISON and run.agent != playbook.POISON.agent.name:
            yield f"run {run_id(run.id)} of {run.agent} was held as poison, and kills nobody"
