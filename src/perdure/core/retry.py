"""Retries: bounded, classified, spaced. `decide` is the whole policy as one pure function.

By default a step is tried 3 times for what is transient (see `transience`), and everything else is final. Delays
double from `delay_s` up to `max_delay_s`, spread by `jitter`, so that a thousand runs that failed together do not come
back together. What a server asks for with Retry-After is a floor, up to a day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, TypeGuard

from perdure.core.durations import Duration, seconds
from perdure.core.limits import ATTEMPTS_DEFAULT, RETRY_AFTER_S_MAX
from perdure.core.shown import shown
from perdure.core.transience import is_transient, retry_after_s
from perdure.errors import UsageError

Errors = type[BaseException] | tuple[type[BaseException], ...]
"""Classes of exceptions, as `except` takes them."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a step is tried, for which errors, and how far apart. Durations are seconds or text like "2m".

    `attempts` counts the first try. `retry_on` adds classes of exceptions to the transient ones, or is a function that
    decides alone; `final` names what is never tried again and goes before everything else. Mistakes in the program
    (`UsageError`) are always final.
    """

    attempts: int = ATTEMPTS_DEFAULT
    _: KW_ONLY
    delay_s: Duration = 1.0
    factor: float = 2.0
    max_delay_s: Duration = 60.0
    jitter: float = 0.2
    retry_on: Errors | Callable[[BaseException], bool] = ()
    final: Errors = ()

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(
                f"attempts is {shown(self.attempts)}; it counts the first try, so it is a number from 1 on."
            )
        if not _is_number(self.factor) or not 1 <= self.factor <= FACTOR_MAX:
            raise UsageError(f"factor is {shown(self.factor)}; it must be from 1 to {FACTOR_MAX}.")
        if not _is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise UsageError(f"jitter is {shown(self.jitter)}; it is a share of the delay, from 0 to 1.")
        if not (_are_errors(self.retry_on) or _is_function(self.retry_on)):
            raise UsageError(
                f"retry_on is {shown(self.retry_on)}; give exception classes, or a function of the exception."
            )
        if not _are_errors(self.final):
            raise UsageError(f"final is {shown(self.final)}; give an exception class or a tuple of them.")
        object.__setattr__(self, "delay_s", seconds(self.delay_s, what="a delay"))
        object.__setattr__(self, "max_delay_s", seconds(self.max_delay_s, what="a delay"))


@dataclass(frozen=True, slots=True)
class Stop:
    """No further try: the error is final, or the attempts are used up."""

    why: Literal["final", "attempts"] = "final"


@dataclass(frozen=True, slots=True)
class RetryIn:
    """Try again, that many seconds from now."""

    delay_s: float


def decide(policy: Retry, *, attempt: int, error: BaseException, random: float, now_us: int) -> Stop | RetryIn:
    """What follows the failure of try number `attempt`, counted from 1.

    `random` is uniform in [0, 1); `now_us` is wall-clock time, for a Retry-After that is a date.
    """
    assert attempt >= 1, attempt
    if not _may_retry(policy, error):
        return Stop("final")
    if attempt >= policy.attempts:
        return Stop("attempts")
    delay = backoff_s(policy, attempt)
    spread = delay * policy.jitter
    asked = retry_after_s(error, now_us)
    if asked is not None and asked > delay - spread:
        # Spread upwards only: before that moment nobody is welcome.
        return RetryIn(min(asked, RETRY_AFTER_S_MAX) + spread * random)
    return RetryIn(delay + spread * (2 * random - 1))


def backoff_s(policy: Retry, attempt: int) -> float:
    """The delay after try number `attempt`, before jitter."""
    assert isinstance(policy.delay_s, float), "Retry() has made it seconds"
    assert isinstance(policy.max_delay_s, float), "Retry() has made it seconds"
    # Past 64 doublings every delay is at its maximum, and the power would overflow some day.
    return min(policy.delay_s * policy.factor ** min(attempt - 1, 64), policy.max_delay_s)


FACTOR_MAX: Final = 1_000.0
"""A factor past this is a mistake; it also keeps the 64th power finite."""


def may_deliver_again(policy: Retry, error: BaseException) -> bool:
    """Whether a sink's policy lets a delivery be tried again after this error. Whatever it was, unless the policy says
    for which: `final` ones never, and with `retry_on` those that it chooses, besides what is transient."""
    if isinstance(error, policy.final):
        return False
    return policy.retry_on == () or _is_chosen(policy, error)


def _may_retry(policy: Retry, error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, (UsageError, policy.final)):
        return False
    return _is_chosen(policy, error)


def _is_chosen(policy: Retry, error: BaseException) -> bool:
    chosen = policy.retry_on
    if _is_function(chosen):
        return _says_yes(chosen, error)
    assert _are_errors(chosen), "Retry() has seen to it"
    return isinstance(error, chosen) or is_transient(error)


def _says_yes(asked: Callable[[BaseException], bool], error: BaseException) -> bool:
    try:
        return bool(asked(error))
    except (Exception, SystemExit) as trouble:  # the edge of user code: what breaks has not asked for another try
        error.add_note(f"retry_on broke on this error, so it is final: {type(trouble).__name__}")
        return False


def _are_errors(value: object) -> TypeGuard[Errors]:
    classes = value if isinstance(value, tuple) else (value,)
    return all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes)


def _is_function(value: object) -> TypeGuard[Callable[[BaseException], bool]]:
    return callable(value) and not isinstance(value, type)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
