"""The story of a seed: requests and their answers, a line each."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perdure.core.changes import (
    BeginUndo,
    Change,
    CloseWait,
    CommitOutcome,
    Deliver,
    EndRun,
    IntendEffect,
    OpenWait,
    Reserve,
    SendMessage,
    SettleEffect,
)
from perdure.core.records import Run, TakenOver
from perdure.core.requests import Answered, NotAnswered, StartRun
from perdure.testing.simulation.wire import Request


def shown(request: Request, answer: Any) -> str:
    """A request and its answer in a line."""
    if isinstance(answer, Exception):
        return f"{request.verb}: refused: {answer}"
    match request.verb:
        case "commit":
            kinds = Counter(_change(change) for change in request.args[1])
            what = ", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in kinds.items())
            return f"commit by w{request.args[0]}: {what}{_outcome(answer)}"
        case "claim":
            return f"claim by w{request.args[0].worker}: {[f'r{each.run} under {each.fence}' for each in answer]}"
        case "take_over":
            taken: list[TakenOver] = answer
            return f"take_over: {[f'w{each.worker} {each.requeued} {each.held}' for each in taken]}"
        case "start":
            return f"start: {[_start(ask) for ask in request.args[0]]} -> {answer}"
        case "register":
            return f"register w{request.args[0].id} ({request.args[0].deployment})"
        case "answer":
            return f"answer {request.args[0].answer!r} to i{request.args[0].interrupt}: {_answer(answer)}"
        case "send":
            asked = [f"m{each.id} ({each.label}) to {each.thread_id}" for each in request.args[0]]
            return f"send {asked} -> {answer}"
        case "cancel":
            return f"cancel r{request.args[0]} ({request.args[1]}) -> {_row(answer)}"
        case "fork":
            ask = request.args[0]
            return f"fork r{ask.start.id} at {ask.super_step} with {[row.key for row in ask.records]} -> {answer}"
        case "claim_deliveries":
            given = [f"d{each.id} (try {each.attempts})" for each in answer]
            return f"claim_deliveries by w{request.args[0].worker}, with {list(request.args[0].keep)} in hand: {given}"
        case "settle_deliveries":
            said = [f"d{each.delivery} (try {each.attempt}) {each.state}" for each in request.args[1]]
            return f"settle_deliveries by w{request.args[0]}: {said}"
        case "set_budget":
            return f"set_budget {request.args[0].name} to {request.args[0].limits} by {request.args[1]} -> {answer}"
        case verb:
            told = answer if not hasattr(answer, "state") else answer.state
            return f"{verb}{request.args}{request.kwargs or ''} -> {told}"


def _change(change: Change) -> str:
    name = f"{type(change).__name__} r{change.run}"
    match change:
        case EndRun():
            return f"{name} {change.outcome}"
        case CloseWait(key=key, take=take, expired=expired):
            end = "none" if change.record is None else "expired" if expired else f"m#{take}" if take else "ready"
            return f"{name} {key!r} {end}"
        case OpenWait() | SendMessage() | Reserve():
            return f"{name} {change.key!r}"
        case Deliver(delivery=new):
            return f"{name} {new.key!r} to {new.sink}"
        case IntendEffect(key=key, attempt=attempt, undo=undo):
            return f"{name} {'undo of ' if undo else ''}{key!r} try {attempt}"
        case SettleEffect(effect=effect, attempt=attempt, state=state):
            return f"{name} e{effect} try {attempt} {state}{'' if change.record is None else ', recorded'}"
        case BeginUndo():
            return f"{name} {change.outcome}"
        case _:
            return name


def _outcome(answer: CommitOutcome) -> str:
    said = "" if answer.alive else " (not alive)"
    for word in ("lost", "refused", "awake", "cancelled"):
        if runs := sorted(getattr(answer, word)):
            said += f" {word} {runs}"
    return said + (f" bounced {sorted(answer.bounced.items())}" if answer.bounced else "")


def _start(ask: StartRun) -> str:
    parent = "" if ask.parent is None else f", a child of r{ask.parent.run}"
    return f"{(ask.key or str(ask.id))!r} on {ask.thread_id} ({ask.if_busy}{parent})"


def _answer(answer: Any) -> str:
    if not isinstance(answer, Answered | NotAnswered):
        return str(answer)
    return f"{type(answer).__name__}, {answer.interrupt.state} of r{answer.interrupt.run}"


def _row(run: Run | None) -> str:
    return "no such run" if run is None else f"{run.state}, {run.cancel}"
