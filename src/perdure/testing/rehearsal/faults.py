"""The words for faults: which step, at which of its executions, and what happens.

A step is named by its name ("search": every call of it) or by its key ("2/search#3": one call). Executions are counted
over the whole rehearsal, from 1; a fault strikes at number `nth`, and at the `times - 1` after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from perdure.core.durations import seconds
from perdure.core.keys import given
from perdure.errors import UsageError


class Moment(Enum):
    """When a fault strikes."""

    BEFORE = "before the body"
    INSTEAD = "instead of the body"
    IN = "after the body, before its record"
    AFTER = "when the record is on disk"


@dataclass(slots=True)
class Fault:
    """Something that happens to a step."""

    step: str
    moment: Moment
    nth: int = 1
    times: int = 1
    crashes: bool = False
    error: BaseException | type[BaseException] | None = None
    delay_s: float = 0.0
    answer: Callable[..., Any] | None = None
    seen: int = field(default=0, init=False)
    """Executions it has looked at."""

    def strikes(self, moment: Moment, name: str, key: str) -> bool:
        """Count an execution of its step at its moment; whether it strikes now."""
        if moment is not self.moment or (self.step not in (name, key) and given(self.step) != key):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times

    @property
    def struck(self) -> bool:
        """Whether it has struck at least once."""
        return self.seen >= self.nth


def crash_before(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends as the step's body is about to begin."""
    return _fault(step, Moment.BEFORE, nth, times, crashes=True)


def crash_in(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends when the body has done its work, and nothing of it is recorded: what every durable
    system does again."""
    return _fault(step, Moment.IN, nth, times, crashes=True)


def crash_after(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends when the step's record is on disk, before anybody there has heard of it."""
    return _fault(step, Moment.AFTER, nth, times, crashes=True)


def fail_step(
    step: str, error: BaseException | type[BaseException] = ConnectionError, *, nth: int = 1, times: int = 1
) -> Fault:
    """The step's body is not called, and this is raised instead. The step's own policy says what follows."""
    if not (isinstance(error, BaseException) or (isinstance(error, type) and issubclass(error, BaseException))):
        raise UsageError(f"fail_step takes an exception, such as ConnectionError('no route'), not {error!r}")
    return _fault(step, Moment.INSTEAD, nth, times, error=error)


def slow_step(step: str, by: float | str | timedelta, *, nth: int = 1, times: int = 1) -> Fault:
    """The step's body begins so much later; its time limit runs."""
    return _fault(step, Moment.BEFORE, nth, times, delay_s=seconds(by))


def answer_step(step: str, answer: Any, *, nth: int = 1, times: int = 1_000_000) -> Fault:
    """The step's body is not called, and this is its result: a value, or a function of the step's arguments."""
    make = answer if callable(answer) else lambda *args, **kwargs: answer
    return _fault(step, Moment.INSTEAD, nth, times, answer=make)


def _fault(step: str, moment: Moment, nth: int, times: int, **what: Any) -> Fault:
    if not isinstance(step, str) or not step:
        raise UsageError(f'a fault names a step by its name or its key, such as "search", not {step!r}')
    if nth < 1 or times < 1:
        raise UsageError(f"nth={nth} and times={times} count executions from 1 on")
    return Fault(step, moment, nth, times, **what)
