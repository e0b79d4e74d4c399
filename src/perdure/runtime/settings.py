"""Settings: from arguments, else from the environment, else the default. Each is checked where it enters."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from perdure.core.limits import CLEAN_UP_S, DURATION_S_MAX, LEASE_S, NAME_CHARS_MAX, RECOVERIES_MAX, STALL_LIMIT_S
from perdure.core.shown import did_you_mean, shown
from perdure.errors import UsageError

CONCURRENCY = 1000
LEASE_S_MIN = 0.5
"""Below this, an ordinary pause of a busy machine would cost a worker its runs."""
WHOLE_MAX = 2**31 - 1
"""Of a setting that counts."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker process behaves."""

    name: str
    deployment: str
    concurrency: int = CONCURRENCY
    queues: tuple[str, ...] = ("default",)
    lease_s: float = LEASE_S
    poll_s: float = 1.0
    """Fallback look at the queue when no hint comes."""
    grace_s: float = 30.0
    """What a draining worker gives its steps in flight before it hands their runs back all the same."""
    clean_up_s: float = CLEAN_UP_S
    """What the code of a cancelled or overdue run has to clean up; parked time not counted, but an overdue run is not
    parked."""
    recoveries_max: int = RECOVERIES_MAX
    stall_limit_s: float = STALL_LIMIT_S

    def __post_init__(self) -> None:
        _whole("concurrency", self.concurrency)
        _positive("poll_s", self.poll_s)
        _positive("stall_limit_s", self.stall_limit_s)
        _positive("clean_up_s", self.clean_up_s)
        _whole("recoveries_max", self.recoveries_max)
        if not _is_number(self.lease_s) or self.lease_s < LEASE_S_MIN:
            raise UsageError(f"lease_s is {shown(self.lease_s)}; it must be at least {LEASE_S_MIN} seconds")
        if not _is_number(self.grace_s) or self.grace_s < 0:
            raise UsageError(f"grace_s is {shown(self.grace_s)}; it must be a number of seconds, and not negative")
        if not self.queues:
            raise UsageError("queues is empty; name at least one queue, or leave it out")
        for text in (self.name, self.deployment, *self.queues):
            check_name("a worker's, deployment's or queue's name", text)


def worker_settings(**given: Any) -> WorkerSettings:
    """Settings from arguments that are not None, else from `PERDURE_…`, else the defaults."""
    _check_known(given)
    values = {name: value for name, value in given.items() if value is not None}
    values.setdefault("concurrency", _number("PERDURE_CONCURRENCY", int, CONCURRENCY))
    values.setdefault("lease_s", _number("PERDURE_LEASE_S", float, LEASE_S))
    values.setdefault("name", f"{socket.gethostname()}:{os.getpid()}")
    values["deployment"] = deployment_name(values.get("deployment"))
    queues = values.get("queues", ("default",))
    if isinstance(queues, str):
        raise UsageError(f'queues is the string {shown(queues)}; give a list, such as ["default"]')
    if not isinstance(queues, Iterable):
        raise UsageError(f'queues is {shown(queues)}; give a list of names, such as ["default"]')
    values["queues"] = tuple(queues)
    return WorkerSettings(**values)


def _check_known(given: Iterable[str]) -> None:
    known = [field.name for field in fields(WorkerSettings)]
    for name in given:
        if name not in known:
            guess = did_you_mean(name, known)
            raise UsageError(f"a worker has no setting {shown(name)}{guess}; there are: {', '.join(known)}")


def deployment_name(given: str | None = None) -> str:
    """The version this process serves: the name given, else `$PERDURE_DEPLOYMENT`, else `default`; plus the Python
    minor version, on which task scopes can depend (see `frames.py`)."""
    if given is not None and not isinstance(given, str):
        raise UsageError(f"deployment is {shown(given)}; give its name as text, or leave it out")
    name = given or os.environ.get("PERDURE_DEPLOYMENT") or "default"
    suffix = f"+py{sys.version_info.major}.{sys.version_info.minor}"
    return name if name.endswith(suffix) else name + suffix


def check_name(what: str, text: object, chars_max: int = NAME_CHARS_MAX) -> str:
    """The text, if it can be a name in every store: printable enough, not empty, not too long."""
    if not isinstance(text, str) or not text:
        raise UsageError(f"{what} must be a non-empty string, not {shown(text)}")
    if len(text) > chars_max:
        raise UsageError(f"{what} has {len(text)} characters ({text[:40]!r}…); at most {chars_max} are allowed")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(
            f"{what} {text!r} contains a NUL or a lone surrogate, which not every store can keep; leave it out"
        )
    return text


def _positive(name: str, value: object) -> None:
    if not _is_number(value) or not value > 0:
        raise UsageError(f"{name} is {shown(value)}; it must be a number above 0")


def _whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= WHOLE_MAX:
        raise UsageError(f"{name} is {shown(value)}; it must be a whole number from 1 to {WHOLE_MAX:,}")


def _is_number(value: object) -> TypeGuard[int | float]:
    """A finite one that a clock can be set by."""
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) <= DURATION_S_MAX


def _number(variable: str, convert: type, default: float) -> Any:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        return convert(text)
    except ValueError:
        raise UsageError(f"${variable} is {text!r}, which is not a number; correct it or unset it") from None
