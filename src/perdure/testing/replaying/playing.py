"""`replay`: every super-step of a history, played by the code of today and compared with its record."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, assert_never

from perdure.core.durations import seconds
from perdure.core.endings import Ending, HandedBack, Held, Lost, Parked, Raised, Returned
from perdure.core.failures import decode_error, run_error
from perdure.core.keys import is_beside, meant
from perdure.core.paths import type_name
from perdure.core.records import Checkpoint, Claimed
from perdure.errors import DeadlineExceeded, UsageError
from perdure.runtime.agent import Agent
from perdure.runtime.interruption import Cancelled, Interruption, Overdue
from perdure.testing.replaying import loading
from perdure.testing.replaying.comparing import Comparison
from perdure.testing.replaying.execution import (
    Answers,
    Diverged,
    Fresh,
    ReplayExecution,
    ReplaySuperStep,
    keep_inside,
)
from perdure.testing.replaying.history import History, Recorded
from perdure.testing.replaying.hosting import Shelf, host_for
from perdure.testing.replaying.report import Difference, Finding, Replayed
from perdure.testing.replaying.timeless import LIMIT, play_out, waiting_at

if TYPE_CHECKING:
    from perdure.app import App

TIMEOUT_S: Final = 30.0
"""How long a replay may take, of real time. Nothing in it is waited for."""


async def replay(
    app: App,
    history: History | str | Path,
    *,
    answers: Answers | None = None,
    timeout: float | str | timedelta = TIMEOUT_S,
) -> Replayed:
    """Execute the agent's code of today on a recorded run, without a store, without any step's body, and in virtual
    time.

    `history`: a value, or the path of its file. `answers`: by step key or name, what a step that is not on record
    returns (a value, a function of its arguments, or an exception to raise). Without one the super-step is looked at up
    to there. `timeout`: of the whole replay, in real time. Raises `UnknownAgent` if the app has no agent of the run's
    name, and `UsageError` for a history that is incomplete, or an answer that no step asks for.
    """
    limit_s = seconds(timeout)
    if limit_s == 0:
        raise UsageError("a replay needs a timeout of more than 0 seconds")
    history, answers = _checked(app, history, answers)
    player = Player(app, history, answers, limit_s=limit_s)
    keep_inside(app)
    await play_out(player, player.play(), limit_s=limit_s)
    player.check_answers()
    return Replayed(
        run_id=history.run_id, agent=player.agent.name, app=app.name, state=history.run.state,
        deployment=history.run.deployment, super_steps=len(history.super_steps), records=player.taken,
        recorded=sum(len(_called(step)) for step in history.super_steps), differences=tuple(player.differences),
    )  # fmt: skip


def _checked(app: object, history: object, answers: object) -> tuple[History, Answers]:
    """What a replay is given, if it is that."""
    from perdure.app import App

    if isinstance(history, str | Path):
        history = History.load(history)
    if not isinstance(app, App) or not isinstance(history, History):
        given = f"{type(app).__name__}, {type(history).__name__}"
        raise UsageError(f"replay(app, history) takes an App, then a History or the path of its file; it got ({given})")
    if answers is not None and not isinstance(answers, Mapping):
        raise UsageError(f"answers= is a dict from a step's name or key to its answer, and is not {answers!r}")
    history.check()
    return history, {} if answers is None else answers


class Player:
    """Plays a history's super-steps, one after another."""

    def __init__(self, app: App, history: History, answers: Answers, *, limit_s: float) -> None:
        self.agent: Agent[..., Any] = app.find_agent(history.run.agent)
        self._agents = app.agents
        self.differences: list[Difference] = []
        self.taken = 0
        """Recorded steps that the code asked for."""
        self._history = history
        self._answers = answers
        self._limit_s = limit_s
        self._over = False
        self._step: ReplaySuperStep | None = None
        self._moves = 0
        self._names: set[str] = set()
        self._keys: set[str] = set()
        self._unanswered: set[str] = set()

    @property
    def moves(self) -> int:
        """A number that grows with every call of a step."""
        return self._moves + (0 if self._step is None else self._step.moves)

    def give_up(self, why: str) -> None:
        """End the super-step that does not end by itself; at the limit, all of them."""
        self._over = self._over or why is LIMIT
        if self._step is not None:
            self._step.give_up(why, waiting_at)

    async def play(self) -> None:
        """Play every super-step, until the limit."""
        for recorded in self._history.super_steps:
            if self._over:
                now = f"not replayed: the limit of {self._limit_s:g} s ran out"
                self.differences.append(
                    Difference(Finding.STUCK, recorded.number, "replay", now=now, detail=f"{now}. {_LONGER}")
                )
                return
            self.differences += await self._play(recorded)

    async def _play(self, recorded: Recorded) -> list[Difference]:
        history = self._history
        shelf = Shelf(history.blobs)
        host = host_for(history.run.deployment, recorded.boundary.ended_at, shelf, self._agents)
        execution = ReplayExecution(
            host, _claimed(history, recorded), self.agent, answers=self._answers, questions=history.questions,
            interruption=_interruption(history, recorded),
        )  # fmt: skip
        self._step = step = execution.step
        ending = await execution.play()
        self._note(step, recorded)
        at_the_end = await _at_the_end(execution, ending, recorded, Comparison(recorded, shelf))
        return [*_on_the_way(step, recorded), *at_the_end]

    def _note(self, step: ReplaySuperStep, recorded: Recorded) -> None:
        self._moves += step.moves + 1
        self._step = None
        self.taken += len(step.watched.asked.intersection(row.key for row in recorded.records))
        self._names |= step.names
        self._keys |= step.watched.asked
        self._unanswered |= {each.key for each in step.unrecorded.values() if not each.answered}

    def check_answers(self) -> None:
        """Refuse an answer that nothing asked for, where it looks like one that is missing. (Where none is missing, an
        answer may be for another history.)"""
        for word in self._answers:
            if word in self._names or any(meant((word,), key=key, name="") for key in self._keys):
                continue
            known = sorted(self._names | self._keys)
            close = difflib.get_close_matches(str(word), known, n=1)
            if close or self._unanswered:
                guess = f"; did you mean {close[0]!r}?" if close else ""
                raise UsageError(
                    f"answers= has {word!r}, and no step of that name or key was called{guess} "
                    f"(called: {', '.join(known) or 'none'})"
                )


def _claimed(history: History, recorded: Recorded) -> Claimed:
    """The run in a worker's hands, as if the last one had died when all of this super-step's steps were recorded."""
    run = history.run
    return Claimed(
        run=run.id, thread=run.thread, thread_id=run.thread_id, agent=run.agent, fence=run.fence,
        super_step=recorded.number, attempt=run.attempt, recoveries=0, strikes=0, created_at=run.created_at,
        arguments=recorded.boundary.payload, state=recorded.state, records=recorded.records, attempts=(),
    )  # fmt: skip


def _interruption(history: History, recorded: Recorded) -> Interruption | None:
    """What ended the code of the run's last super-step from outside, if anything did."""
    if recorded.number != history.super_steps[-1].number:
        return None
    if history.run.cancel is not None:
        return Cancelled(history.run.cancel)
    end = recorded.end
    if end is not None and end.failed and decode_error(end.payload).type == type_name(DeadlineExceeded):
        return Overdue()
    return None


def _on_the_way(step: ReplaySuperStep, recorded: Recorded) -> Iterator[Difference]:
    """What the steps showed."""
    for each in step.diverged:
        yield Difference(Finding.DIVERGED, recorded.number, each.key, each.recorded, each.call, _divergence(each))
    left = [row for row in _called(recorded) if row.key not in step.watched.asked]
    for fresh in step.unrecorded.values():
        renamed = _renamed(fresh, left)
        if recorded.end is None and not renamed:
            continue  # what is not on record there is where the run goes on
        if fresh.answered or step.stopped or step.stuck:  # else the agent ended without it, as it may have before
            was = f"as {renamed}" if renamed else "not on record"
            finding = fresh.outside or Finding.NEW
            detail = _OUTSIDE if finding is Finding.WORLD else ""
            yield Difference(finding, recorded.number, fresh.key, was, fresh.call, detail, renamed)


def _renamed(fresh: Fresh, left: list[Checkpoint]) -> str:
    """The key of a record with the same arguments that nobody asked for, of the same branch if there is one: the step
    may have had that name, or that place. Each record is taken once; empty if there is none."""
    branch = fresh.key.rpartition("/")[0]
    alike = [row for row in left if fresh.digest and row.digest == fresh.digest]
    alike.sort(key=lambda row: row.key.rpartition("/")[0] != branch)
    if not alike:
        return ""
    left.remove(alike[0])
    return alike[0].key


def _divergence(each: Diverged) -> str:
    if not each.step:
        return (
            f"{each.key!r} was asked, sent or started with other arguments than the code gives now, so runs like this "
            "one would be held as diverged. Before you deploy: give a changed question another name; or let old runs "
            "give what they gave; or deploy under another version (PERDURE_DEPLOYMENT), so that old runs stay on the "
            "code that began them (docs/how-to.md)"
        )
    return (
        f"step {each.step!r} is on record with other arguments than the code calls it with now, so runs like this one "
        "would be held as diverged. Before you deploy: give the changed step another name; or declare "
        "ignore_args=True, where its arguments do not matter; or deploy under another version (PERDURE_DEPLOYMENT), so "
        "that old runs stay on the code that began them (docs/how-to.md)"
    )


async def _at_the_end(
    execution: ReplayExecution, ending: Ending, recorded: Recorded, comparison: Comparison
) -> list[Difference]:
    """How the end differs from the recorded one."""
    step = execution.step
    match ending:
        case Returned() | Raised() if execution.interruption is not None:
            cancelled = None if recorded.end is None else execution.interrupted(ending)
            raised = [] if cancelled is None else await comparison.raised(cancelled)
            return [*_unused(step, recorded), *raised]
        case Returned(value):
            return [*_unused(step, recorded), *await comparison.returned(execution, value)]
        case Raised(error):
            raised = await comparison.raised(run_error(error))
            return raised or [*_unused(step, recorded)]  # what it did not come to by then is no news
        case Held(_, detail):
            return [_unreadable(execution, recorded, detail)]
        case HandedBack() if step.stuck:
            at = step.waits_at or ["nobody knows where"]
            return [
                Difference(
                    Finding.STUCK, recorded.number, "end", await comparison.end_text(), f"at {at[0]}: {step.stuck}",
                    "\n".join([f"the agent {step.stuck}, at", *(f"  {line}" for line in at), _REMEDY]),
                )
            ]  # fmt: skip
        case HandedBack() | Parked() | Lost():
            return []
        case _:
            assert_never(ending)


_REMEDY: Final = (
    "A replay waits for steps that are on record, and for time, and for nothing else. Make what the agent waits for "
    "there a step; or, if the code is only slow, give the replay a longer timeout (--timeout)."
)
_OUTSIDE: Final = (
    "What the agent's own code asks of the network or of other processes is on no record, and is asked again whenever "
    "the run is resumed: make it a step."
)
_LONGER: Final = "Give the replay a longer timeout (--timeout), or look at what does not end first."


def _unreadable(execution: ReplayExecution, recorded: Recorded, detail: str) -> Difference:
    detail = detail.removeprefix(f"super-step {recorded.number} does not load: ")
    where, remedy = execution.loading, loading.STATE
    if execution.step.ending is not None:
        where, remedy = "record", loading.RECORD
    elif where == "beginning":
        remedy = loading.BLOBS
    elif where == "arguments" and execution.boundary is not None:
        where, remedy = loading.misfit(execution.agent.signature, execution.boundary.arguments)
    named = f"{where}: {detail}" if where.startswith(("parameter", "arguments", "state")) else detail
    return Difference(Finding.UNREADABLE, recorded.number, where, now=detail, detail=f"{named}\n{remedy}")


def _called(recorded: Recorded) -> list[Checkpoint]:
    """The records of what code called; some are of what was done beside it."""
    return [row for row in recorded.records if not is_beside(row.key)]


def _unused(step: ReplaySuperStep, recorded: Recorded) -> Iterator[Difference]:
    """Records that nobody asked for, where the code came to its end and the recorded one had, too."""
    for row in _called(recorded) if recorded.end is not None else ():
        if row.key not in step.watched.asked:
            yield Difference(Finding.UNUSED, recorded.number, row.key, "failed" if row.failed else "recorded")
