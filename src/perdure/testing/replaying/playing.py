"""`replay`: every super-step of a history, played by the code of today and compared with its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, assert_never

from perdure.core.durations import seconds
from perdure.core.endings import Ending, HandedBack, Held, Lost, Raised, Returned
from perdure.core.failures import run_error
from perdure.core.records import Claimed
from perdure.runtime.agent import Agent
from perdure.testing.replaying.comparing import Comparison
from perdure.testing.replaying.execution import Answers, ReplayExecution, ReplaySuperStep, Shelf, host_for, keep_inside
from perdure.testing.replaying.history import History, Recorded
from perdure.testing.replaying.report import Difference, Finding, Replayed

if TYPE_CHECKING:
    from perdure.app import App

TIMEOUT_S: Final = 30.0
"""How long a super-step may take: nothing in it is waited for, unless the agent waits for something of its own."""


async def replay(
    app: App, history: History, *, answers: Answers | None = None, timeout: float | str | timedelta = TIMEOUT_S
) -> Replayed:
    """Execute the agent's code of today on a recorded run, without a store and without any step's body.

    `answers`: by step key or name, what a step that is not on record returns (a value, a function of its arguments, or
    an exception to raise). Without one the super-step is looked at up to there. `timeout`: of one super-step. Raises
    `UnknownAgent` if the app has no agent of the run's name.
    """
    agent = app.find_agent(history.run.agent)
    limit_s = seconds(timeout)
    keep_inside(app)
    played = [await _play(agent, history, step, answers or {}, limit_s=limit_s) for step in history.super_steps]
    return Replayed(
        run_id=history.run_id, agent=agent.name, app=app.name, state=history.run.state,
        deployment=history.run.deployment, super_steps=len(played), records=sum(each.records for each in played),
        differences=tuple(difference for each in played for difference in each.differences),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Played:
    records: int
    differences: tuple[Difference, ...]


async def _play(
    agent: Agent[..., Any], history: History, recorded: Recorded, answers: Answers, *, limit_s: float
) -> _Played:
    """One super-step."""
    shelf = Shelf(history.blobs)
    host = host_for(history.run.deployment, recorded.boundary.ended_at, shelf)
    execution = ReplayExecution(host, _claimed(history, recorded), agent, answers=answers)
    ending = await execution.play(limit_s)
    at_the_end = await _at_the_end(execution, ending, recorded, Comparison(recorded, shelf))
    asked = execution.step.watched.asked.intersection(row.key for row in recorded.records)
    return _Played(len(asked), (*_on_the_way(execution.step, recorded), *at_the_end))


def _claimed(history: History, recorded: Recorded) -> Claimed:
    """The run in a worker's hands, as if the last one had died when all of this super-step's steps were recorded."""
    run = history.run
    return Claimed(
        run=run.id, thread=run.thread, thread_id=run.thread_id, agent=run.agent, fence=run.fence,
        super_step=recorded.number, attempt=run.attempt, recoveries=0, strikes=0, created_at=run.created_at,
        arguments=recorded.boundary.payload, state=recorded.state, records=recorded.records, attempts=(),
    )  # fmt: skip


def _on_the_way(step: ReplaySuperStep, recorded: Recorded) -> Iterator[Difference]:
    """What the steps showed."""
    for each in step.diverged:
        digest = f"arguments of digest {each.record.digest & (1 << 64) - 1:016x}"
        yield Difference(Finding.DIVERGED, recorded.number, each.record.key, digest, each.call, each.detail)
    if recorded.end is None:
        return  # what is not on record there is where the run goes on
    for fresh in step.fresh.values():
        if fresh.answered or step.stopped or step.stuck:  # else the agent ended without it, as it may have before
            finding = Finding.OUTSIDE if fresh.outside else Finding.NEW
            yield Difference(finding, recorded.number, fresh.key, "not on record", fresh.call)


async def _at_the_end(
    execution: ReplayExecution, ending: Ending, recorded: Recorded, comparison: Comparison
) -> list[Difference]:
    """How the end differs from the recorded one."""
    step = execution.step
    match ending:
        case Returned(value):
            return [*_unused(step, recorded), *await comparison.returned(execution, value)]
        case Raised(error):
            return [*_unused(step, recorded), *await comparison.raised(run_error(error))]
        case Held(_, detail):
            where = "beginning" if step.ending is None else "record"
            return [Difference(Finding.UNREADABLE, recorded.number, where, now=detail, detail=detail)]
        case HandedBack() if step.stuck:
            now = "waits for something that is not a step"
            return [Difference(Finding.STUCK, recorded.number, "end", await comparison.end_text(), now)]
        case HandedBack() | Lost():
            return []
        case _:
            assert_never(ending)


def _unused(step: ReplaySuperStep, recorded: Recorded) -> Iterator[Difference]:
    """Records that nobody asked for, where the code came to its end and the recorded one had, too."""
    for row in recorded.records if recorded.end is not None else ():
        if row.key not in step.watched.asked:
            yield Difference(Finding.UNUSED, recorded.number, row.key, "failed" if row.failed else "recorded")
