"""The account at the end: every run has completed, and its log explains what it returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.core.codec import codec_for
from perdure.core.records import HeldReason, Kind, Run, RunState, run_id
from perdure.testing.simulation import playbook
from perdure.testing.simulation.orders import Order
from perdure.testing.simulation.rules.look import Log
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
    ):
        witness.blame(wrong)


def _arguments(witness: Witness, run: Run) -> tuple[Any, ...]:
    """What a run was started with, as its log says."""
    boundary = witness.look.logs.get(run.id, {}).get((1, ""))
    if boundary is None:
        return ("nothing on record",)
    args, _ = playbook.ROLES[run.agent].agent.signature.decode(boundary.payload)
    return tuple(args)


def _of_orders(witness: Witness, orders: list[Order], arguments: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    """Every run was ordered; every order with a key has at most one."""
    ordered = {(order.agent, order.args) for order in orders}
    by_key: dict[str, int] = {}
    for run in witness.look.runs.values():
        if (run.agent, arguments[run.id]) not in ordered:
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
        log = witness.look.logs[run.id]
        if (wrong := _complaint(role, run, arguments[run.id], log, witness.result(run))) is not None:
            yield wrong


def _complaint(role: playbook.Role, run: Run, args: tuple[Any, ...], log: Log, result: Any) -> str | None:
    """What is wrong with a completed run, if anything is."""
    if run.state is RunState.FAILED:
        return None  # it has been overtaken, and is over
    values = {
        row.key: None if row.failed else codec_for(Any).decode(row.payload)
        for row in log.values()
        if row.kind is Kind.STEP and row.super_step == run.super_step and run.agent != "heavy"
    }
    for key, value in values.items():
        if isinstance(value, dict) and value.get("deployment", run.deployment) != run.deployment:
            return f"{run_id(run.id)} is pinned to {run.deployment}, and {key!r} was executed by {value['deployment']}"
    try:
        expected = role.expected(args, values)
    except KeyError as missing:
        return f"run {run_id(run.id)} of {run.agent} returned {result!r}, and its log has no {missing}"
    if expected is not None and result != expected:
        return f"run {run_id(run.id)} of {run.agent}{args} returned {result!r}; its log makes {expected!r}"
    return None


def _of_states(witness: Witness, arguments: dict[int, tuple[Any, ...]]) -> Iterator[str]:
    """A thread's state has an entry of each super-step that ended on it, in their order. A run begins with what its
    thread has, and goes on with its own, wherever it is executed."""
    of_threads: dict[int, list[str]] = {}
    of_runs: dict[int, list[str]] = {}
    for id, super_step in witness.boundaries:
        run = witness.look.runs[id]
        if run.agent in ("tally", "ledger"):
            before = of_runs.get(id, []) if super_step > 2 else of_threads.get(run.thread, [])
            of_runs[id] = of_threads[run.thread] = [*before, f"{arguments[id][0]} {super_step - 2}"]
    for id, entries in of_runs.items():
        run = witness.look.runs[id]
        if run.state is RunState.COMPLETED and (result := witness.result(run)) != entries:
            yield f"thread {run.thread_id} after {run_id(id)}: {result}, not {entries}"


def _of_held(witness: Witness, orders: list[Order], weather: Weather) -> Iterator[str]:
    """Where only one run kills, it alone is held for it: what ran beside it is not taken for the culprit."""
    poisons = [order for order in orders if order.agent == playbook.POISON.agent.name]
    if len(poisons) > 1 or not is_harmless(weather):
        return
    for run in witness.held:
        if run.reason == HeldReason.POISON and run.agent != playbook.POISON.agent.name:
            yield f"run {run_id(run.id)} of {run.agent} was held as poison, and kills nobody"
