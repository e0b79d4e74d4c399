"""The verbs of agent code that are not steps."""

from __future__ import annotations

import asyncio
import random as random_module
import uuid as uuid_module
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perdure.core.codec import codec_for
from perdure.core.durations import Duration, seconds
from perdure.core.records import run_id
from perdure.errors import NotInRun
from perdure.runtime.frames import AgentFrame, StepFrame, agent_frame, frame
from perdure.runtime.info import moment
from perdure.runtime.threads import post


@dataclass(frozen=True, slots=True)
class Current:
    """Where the calling code runs."""

    run_id: str
    thread_id: str
    agent: str
    super_step: int
    attempt: int
    """In a step's body: which try of the step this is. In agent code: how often the run has been claimed."""
    step: str | None
    """In a step's body: the step's key, unique in its super-step. None in agent code."""
    deployment: str


def current() -> Current:
    """The run that this code belongs to; works in agent code and in a step's body, also in its thread."""
    where = frame.get()
    if where is None:
        raise NotInRun("perdure.current() was called outside of a run; call it in an agent or in a step's body")
    at = where.super_step
    claimed = at.claimed
    step, attempt = (None, claimed.attempt) if isinstance(where, AgentFrame) else (where.key, where.attempt)
    return Current(run_id(claimed.run), claimed.thread_id, claimed.agent, at.number, attempt, step, at.host.deployment)


def now() -> datetime:
    """The time, in UTC, recorded: a replay sees the same."""
    at = agent_frame("now")
    made: datetime = _recorded(at, "now", lambda: moment(at.super_step.host.clock.wall_us()), datetime)
    return made


def random() -> float:
    """A random number in [0, 1), recorded."""
    at = agent_frame("random")
    made: float = _recorded(at, "random", random_module.random, float)
    return made


def uuid4() -> uuid_module.UUID:
    """A random UUID, recorded."""
    at = agent_frame("uuid4")
    made: uuid_module.UUID = _recorded(at, "uuid4", uuid_module.uuid4, uuid_module.UUID)
    return made


def extend_timeout(duration: Duration) -> None:
    """In a step's body: let this try go on for so long from now, if its `timeout` would come before. For work that is
    slow and knows that it is getting on."""
    where = frame.get()
    if not isinstance(where, StepFrame):
        raise NotInRun("perdure.extend_timeout() was called outside of a step's body; call it where the time passes")
    limit_s = seconds(duration)
    loop = where.super_step.host.deadlines.loop
    if where.deadline is None:
        return
    if asyncio._get_running_loop() is loop:
        where.deadline.extend(limit_s)
    else:  # a body in a thread
        post(loop, where.deadline.extend, limit_s)


def _recorded(at: AgentFrame, name: str, make: Any, type_: Any) -> Any:
    codec = codec_for(type_)
    return at.super_step.record_value(name, at.scope, make, codec.encode, codec.decode)
