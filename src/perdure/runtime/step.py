"""Steps: calls whose result is recorded once.

`@step` turns a function into a `Step`. Called in an agent, it is recorded; called anywhere else, it is the plain
function (awaited). What a call may vary is in `StepOptions`; `options(...)` gives a step with some of them changed.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Self, TypeVar, cast, overload

from perdure.core.budgets import ONE_TRY, Amounts, Cost, amounts_of
from perdure.core.codec import Codec, codec_for
from perdure.core.durations import seconds
from perdure.core.limits import KEY_CHARS_MAX, STEP_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.core.signature import return_annotation
from perdure.errors import UsageError
from perdure.runtime.callables import Cpu, Pools, cpu_of, invoke, name_of
from perdure.runtime.frames import AgentFrame, StepFrame, frame
from perdure.runtime.settings import check_name
from perdure.runtime.stepping import execute, record_try

if TYPE_CHECKING:
    from perdure.runtime.effect import EffectPlan
    from perdure.runtime.superstep import SuperStep

P = ParamSpec("P")
R = TypeVar("R")

Durability = Literal["async", "sync"]

UNSET: Any = object()

plain_pools = Pools()
"""For steps that are called outside of an agent."""


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How one call of a step is recorded and retried."""

    name: str
    retry: Retry
    key: str | None = None
    timeout_s: float | None = STEP_TIMEOUT_S
    ignore_args: bool = False
    durability: Durability | None = None
    estimate: Amounts = ONE_TRY
    """What a try may cost, for budgets."""


class Step(Generic[P, R]):
    """A function whose calls inside an agent are recorded."""

    plan: EffectPlan | None = None
    """Of an effect."""
    undone_by_crash = False
    """Whether a try that a crash has cut short is known to have done nothing: then it does not count."""

    def __init__(self, fn: Callable[..., Any], options: StepOptions, *, cpu: Cpu, returns: Any = UNSET) -> None:
        self.fn = fn
        self.settings = options
        self.cpu = cpu
        self._returns = returns
        self._codec: Codec | None = None
        functools.update_wrapper(self, fn, updated=())

    @property
    def codec(self) -> Codec:
        """How its result is recorded: by `returns`, else by the function's return annotation."""
        if self._codec is None:
            annotation = return_annotation(self.fn) if self._returns is UNSET else self._returns
            self._codec = codec_for(annotation)
        return self._codec

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        current = frame.get()
        if isinstance(current, AgentFrame):
            return cast(R, await current.super_step.call(self, current.scope, args, kwargs))
        pools = current.super_step.pools if isinstance(current, StepFrame) else plain_pools
        return cast(R, await invoke(self.fn, self.cpu, pools, args, kwargs))

    def options(
        self,
        *,
        key: str | None = None,
        name: str | None = None,
        timeout: float | str | timedelta | None = UNSET,
        retry: Retry | int | None = None,
        durability: Durability | None = None,
        estimate: Cost | None = None,
    ) -> Self:
        """This step with some of its settings changed for the calls made through the result.

        `key` is the call's own key: unique in its super-step, whatever task it is made in (a tool call's id, say).
        `estimate` is what a try of it may cost, for budgets.
        """
        changed: dict[str, Any] = {}
        if key is not None:
            changed["key"] = check_name("a step's key", key, KEY_CHARS_MAX)
        if name is not None:
            changed["name"] = check_name("a step's name", name)
        if timeout is not UNSET:
            changed["timeout_s"] = timeout_s(timeout)
        if retry is not None:
            changed["retry"] = as_retry(retry)
        if durability is not None:
            changed["durability"] = check_durability(durability)
        if estimate is not None:
            changed["estimate"] = check_estimate(estimate)
        step = self._variant(self.fn, replace(self.settings, **changed))
        step._codec = self._codec
        return step

    async def perform(
        self, at: SuperStep, key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # fmt: skip
        """What a call in an agent does that has no record yet."""
        return await execute(at, self, key, digest, args, kwargs)

    async def try_and_record(
        self, here: StepFrame, digest: int, started_at: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # fmt: skip
        """One try of that, and its record."""
        return await record_try(self, here, digest, started_at, args, kwargs)

    def _variant(self, fn: Callable[..., Any], settings: StepOptions) -> Self:
        """The same with another function or other settings."""
        return type(self)(fn, settings, cpu=self.cpu, returns=self._returns)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """On an instance: the method, with the instance as its first argument."""
        if instance is None:
            return self
        bound = self._variant(functools.partial(self.fn, instance), self.settings)
        bound._returns = return_annotation(self.fn) if self._returns is UNSET else self._returns
        return bound

    def __repr__(self) -> str:
        return f"<step {self.settings.name}>"


@overload
def step(fn: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
@overload
def step(fn: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    fn: Callable[P, Any],
    /,
    *,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    cpu: Literal["thread", "process"] | None = ...,
    returns: type[R],
    ignore_args: bool = ...,
    durability: Durability | None = ...,
    estimate: Cost | None = ...,
) -> Step[P, R]: ...
@overload
def step(
    fn: Callable[P, Any],
    /,
    *,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    cpu: Literal["thread", "process"] | None = ...,
    returns: Any = ...,
    ignore_args: bool = ...,
    durability: Durability | None = ...,
    estimate: Cost | None = ...,
) -> Step[P, Any]: ...
@overload
def step(
    *,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    cpu: Literal["thread", "process"] | None = ...,
    returns: Any = ...,
    ignore_args: bool = ...,
    durability: Durability | None = ...,
    estimate: Cost | None = ...,
) -> _Decorator: ...


def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: float | str | timedelta | None = UNSET,
    cpu: Literal["thread", "process"] | None = None,
    returns: Any = UNSET,
    ignore_args: bool = False,
    durability: Durability | None = None,
    estimate: Cost | None = None,
) -> Any:
    """Make a step of a function: `@step`, `@step(...)`, or `step(callable, name=…)` for any callable.

    `retry`: a `Retry`, or a number of attempts. `timeout`: start to finish of one attempt, in seconds or as "90s"
    (default one hour; None for no limit). `cpu`: where a plain `def` runs, "thread" (default) or "process".
    `returns`: the type its result is recorded as, where the annotation does not say. `ignore_args`: calls under one
    key are the same call whatever their arguments. `durability="sync"`: go on only when the record is on disk.
    `estimate`: a `Cost`, what a try may cost at most: reserved before it in the budgets that its run counts against.
    """
    if fn is None:
        return functools.partial(
            step,
            name=name,
            retry=retry,
            timeout=timeout,
            cpu=cpu,
            returns=returns,
            ignore_args=ignore_args,
            durability=durability,
            estimate=estimate,
        )
    if not callable(fn):
        raise UsageError(f"step() takes a function or another callable, not {shown(fn)}")
    if isinstance(fn, Step):
        raise UsageError(f"{fn!r} is a step already; use .options(...) to change its settings")
    settings = StepOptions(
        name=check_name("a step's name", name or name_of(fn)),
        retry=as_retry(retry) if retry is not None else Retry(),
        timeout_s=STEP_TIMEOUT_S if timeout is UNSET else timeout_s(timeout),
        ignore_args=ignore_args,
        durability=check_durability(durability) if durability is not None else None,
        estimate=check_estimate(estimate),
    )
    return Step(fn, settings, cpu=cpu_of(fn, cpu), returns=returns)


class _Decorator:
    """Only for type checkers: what `@step(...)` is before it meets its function."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    def __call__(self, fn: Any, /) -> Any: ...


def as_retry(retry: Retry | int) -> Retry:
    """A policy from a policy or a number of attempts."""
    if isinstance(retry, Retry):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return Retry(attempts=retry)
    raise UsageError(f"retry is {shown(retry)}; give a perdure.Retry(...) or a number of attempts")


def timeout_s(timeout: float | str | timedelta | None) -> float | None:
    """A time-out in seconds; None for no limit."""
    if timeout is None:
        return None
    value = seconds(timeout)
    if value == 0:
        raise UsageError("a timeout of 0 would fail every attempt at once; leave it out or give None for no limit")
    return value


def check_estimate(estimate: object) -> Amounts:
    """What a try may cost, as a budget counts it."""
    if estimate is None:
        return ONE_TRY
    if isinstance(estimate, Cost):
        return amounts_of(estimate)
    raise UsageError(f"estimate is {shown(estimate)}; give a perdure.Cost(usd=..., tokens=...)")


def check_durability(durability: object) -> Durability:
    """The mode, if it is one."""
    if durability in ("async", "sync"):
        return durability
    raise UsageError(f'durability={shown(durability)} is neither "async" nor "sync"')
