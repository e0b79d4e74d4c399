"""What happened in a world besides faults, counted: so that a report says how often the rules had something to hold
for."""

from __future__ import annotations

from collections import Counter
from typing import Final

from perdure.core.records import Run, RunState
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Look, Write

MOVES: Final[dict[tuple[RunState, RunState], str]] = {
    (RunState.RUNNING, RunState.WAITING): "parked",
    (RunState.WAITING, RunState.QUEUED): "woken",
    (RunState.WAITING, RunState.RUNNING): "claimed when its time had come",
}


def count(events: Counter[str], write: Write) -> None:
    """What one write has brought about."""
    for id in write.touched:
        was, run = write.before.runs.get(id), write.now.runs[id]
        if was is None:
            events["run started"] += 1
            events["child started"] += run.parent is not None
        else:
            _of_run(events, was, run)
    if write.verb == "commit" and write.done:
        events["not parked, for something had come"] += len(write.answer.awake)
        for why in write.answer.bounced.values():
            events[f"bounced: {why}"] += 1


def _of_run(events: Counter[str], was: Run, run: Run) -> None:
    if (move := MOVES.get((was.state, run.state))) is not None:
        events[move] += 1
    if was.cancel is None and run.cancel is not None:
        events["cancellation requested"] += 1
    if was.state is not run.state and run.state is RunState.CANCELLED:
        events["cancelled"] += 1


def total(events: Counter[str], annals: Annals, look: Look) -> Counter[str]:
    """All of it, at the end."""
    questions = Counter(f"question {asked.state}" for asked in look.interrupts.values())
    events = events + questions
    events["question asked"] = len(look.interrupts)
    events["message sent"] = len(annals.sent)
    events["message received"] = len(annals.received)
    events["dead letter"] = len(look.dead)
    events["fork"] = len(annals.forks)
    events["state taken back"] = sum(super_step == 0 for _, super_step in annals.boundaries)
    events += Counter(f"effect {row.state}" for row in look.effects.values())
    events += Counter(f"{'bill' if row.bill else 'delivery'} {row.state}" for row in look.deliveries.values())
    events["meter"] = sum(len(rows) for rows in look.meters.values())
    events["budget"] = len(look.budgets)
    events["budget set again"] = sum(row.rev - 1 for row in look.budgets.values())
    events["effect resolved by a person"] = sum(row.by is not None for row in look.effects.values())
    return +events
