"""The words for faults: which step, at which of its executions, and what happens.

A step is named by its name ("search": every call of it) or by its key ("2/search#3": one call). Executions are counted
over the whole rehearsal, from 1; a fault strikes at number `nth`, and at the `times - 1` after it. Each rehearsal
counts anew, so that one fault can be used in many. What an effect has beside its body is named by it: "undo:charge",
"verify:charge".

A crash can also be aimed at a wait or another verb, by its name: "sleep", "receive", "send", a question's name,
"start:parcel". Such a call begins with the first thing that is written for it, and then waits until its record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from enum import Enum
from typing import Any, TypeGuard

from perdure.core.durations import seconds
from perdure.core.keys import meant
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
    delay_s: float = 0.0
    answer: Any = None
    """`answers.py` says what it stands for."""
    seen: int = field(default=0, init=False)
    """Executions it has looked at."""

    def strikes(self, moment: Moment, name: str, key: str) -> bool:
        """Count an execution of its step at its moment; whether it strikes now."""
        if moment is not self.moment or meant((self.step,), key=key, name=name) is None:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times

    @property
    def fails(self) -> bool:
        """Whether it may make a body fail: by its end, by its time limit, or by an error."""
        return self.crashes or self.delay_s > 0 or _is_error(self.answer)

    @property
    def struck(self) -> bool:
        """Whether it has struck at least once."""
        return self.seen >= self.nth


def crash_before(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends as the step's body, or the wait, is about to begin."""
    return _fault(step, Moment.BEFORE, nth, times, crashes=True)


def crash_in(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends when the body has done its work, and nothing of it is recorded: what every durable
    system does again. Of a wait: when it has begun."""
    return _fault(step, Moment.IN, nth, times, crashes=True)


def crash_after(step: str, *, nth: int = 1, times: int = 1) -> Fault:
    """The worker's process ends when the step's record is on disk, before anybody there has heard of it."""
    return _fault(step, Moment.AFTER, nth, times, crashes=True)


def fail_step(
    step: str, error: BaseException | type[BaseException] = ConnectionError, *, nth: int = 1, times: int = 1
) -> Fault:
    """The step's body is not called, and this is raised instead. The step's own policy says what follows."""
    if not _is_error(error):
        raise UsageError(f"fail_step takes an exception, such as ConnectionError('no route'), not {error!r}")
    _check_raisable(error)
    return _fault(step, Moment.INSTEAD, nth, times, answer=error)


def slow_step(step: str, by: float | str | timedelta, *, nth: int = 1, times: int = 1) -> Fault:
    """The step's body begins so much later; its time limit runs."""
    return _fault(step, Moment.BEFORE, nth, times, delay_s=seconds(by))


def answer_step(step: str, answer: Any, *, nth: int = 1, times: int = 1_000_000) -> Fault:
    """The step's body is not called, and this is its result: a value, or what a function of the step's arguments
    returns, which may be an async one. An exception, or a class of them, is raised."""
    _check_raisable(answer)
    return _fault(step, Moment.INSTEAD, nth, times, answer=answer)


def _fault(step: str, moment: Moment, nth: int, times: int, **what: Any) -> Fault:
    if not isinstance(step, str) or not step:
        raise UsageError(f'a fault names a step by its name or its key, such as "search", not {step!r}')
    if type(nth) is not int or type(times) is not int or nth < 1 or times < 1:
        raise UsageError(f"nth={nth!r} and times={times!r} count executions from 1 on")
    return Fault(step, moment, nth, times, **what)


def striking(faults: Iterable[Fault], moment: Moment, name: str, key: str) -> list[Fault]:
    """The faults that strike now; every one of them counts, also while another one strikes."""
    return [fault for fault in faults if fault.strikes(moment, name, key)]


def checked(faults: Sequence[object]) -> tuple[Fault, ...]:
    """These faults, if they all are some."""
    for fault in faults:
        if isinstance(fault, Fault):
            continue
        if isinstance(fault, list | tuple | set | frozenset):
            raise UsageError("faults are given one by one; put a star before a list of them: rehearse(app, *faults)")
        if fault in (crash_before, crash_in, crash_after, fail_step, slow_step, answer_step):
            name = getattr(fault, "__name__", "")
            raise UsageError(f'{name} is the word for a fault; say of which step: {name}("search")')
        raise UsageError(f'a fault is made by a word such as crash_after("search"), and is not {fault!r}')
    return tuple(fault for fault in faults if isinstance(fault, Fault))


def idle(
    faults: Iterable[Fault],
    executed: Collection[tuple[str, str]],
    verbs: Collection[tuple[str, str]],
    functions: Mapping[str, str],
) -> str:
    """What to say of the faults that never struck, after the execution of these steps (name and key), and the calls of
    these verbs; nothing if all have. `functions` are by their own names what faults call otherwise."""
    names = sorted({name for name, _ in executed})
    known = {word: None for name, key in (*executed, *verbs) for word in (name, key, key.removeprefix("="))}
    bodiless = {word for call in verbs for word in call}.difference(word for call in executed for word in call)
    words = [
        _idle(fault, list(known), bodiless=fault.step in bodiless, called=functions.get(fault.step))
        for fault in faults
        if not fault.struck
    ]
    if not words:
        return ""
    return f"these never happened: {', '.join(words)}; steps that were executed: {', '.join(names) or 'none'}"


def _idle(fault: Fault, known: list[str], *, bodiless: bool, called: str | None) -> str:
    said = f"{fault.moment.value} {fault.step!r}"
    if fault.seen:
        return f"{said} at number {fault.nth} (it came to {fault.seen})"
    if bodiless:
        return f"{said} (it is no step: only crash it; stage.answer, stage.send and stage.advance say what it gets)"
    near = [] if fault.step in known else [called] if called else get_close_matches(fault.step, known, n=1)
    return f"{said} (did you mean {near[0]!r}?)" if near else said


def _is_error(value: object) -> TypeGuard[BaseException | type[BaseException]]:
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))


def _check_raisable(value: object) -> None:
    """Refuse errors that no step can fail by."""
    if not _is_error(value):
        return
    kind = value if isinstance(value, type) else type(value)
    if not issubclass(kind, Exception):
        raise UsageError(
            f"{kind.__name__} is not a failure of a step, but the end of a process or a task; use crash_in(step) for a "
            "worker that ends, or give an Exception"
        )
    if isinstance(value, type):
        try:
            value()
        except TypeError as error:
            raise UsageError(f"{kind.__name__} needs arguments ({error}); give an instance, with them") from error
