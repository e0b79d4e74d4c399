"""The story of a seed: requests and their answers, a line each."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perdure.core.records import TakenOver
from perdure.testing.simulation.wire import Request


def shown(request: Request, answer: Any) -> str:
    """A request and its answer in a line."""
    if isinstance(answer, Exception):
        return f"{request.verb}: refused: {answer}"
    match request.verb:
        case "commit":
            kinds = Counter(f"{type(change).__name__} r{change.run}" for change in request.args[1])
            what = ", ".join(kind if n == 1 else f"{kind} ×{n}" for kind, n in kinds.items())
            said = "" if answer.alive else " (not alive)"
            said += f" lost {sorted(answer.lost)}" if answer.lost else ""
            said += f" refused {sorted(answer.refused)}" if answer.refused else ""
            return f"commit by w{request.args[0]}: {what}{said}"
        case "claim":
            return f"claim by w{request.args[0].worker}: {[f'r{each.run} under {each.fence}' for each in answer]}"
        case "take_over":
            taken: list[TakenOver] = answer
            return f"take_over: {[f'w{each.worker} {each.requeued} {each.held}' for each in taken]}"
        case "start":
            asked = [f"{ask.key or ask.id} on {ask.thread_id} ({ask.if_busy})" for ask in request.args[0]]
            return f"start: {asked} -> {answer}"
        case "register":
            return f"register w{request.args[0].id} ({request.args[0].deployment})"
        case verb:
            given = f"{request.args}{request.kwargs or ''}"
            return f"{verb}{given} -> {answer if not hasattr(answer, 'state') else answer.state}"
