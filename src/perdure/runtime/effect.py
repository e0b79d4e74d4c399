"""Effects: steps that act on the outside world, once.

`@effect` makes a step whose every dispatch is on disk before it happens. Its outcome is recorded as a step's is. Where
a crash, a time-out or a lost connection leaves it unknown, the effect's own policy says what is done, and never is it
silently done again: `on_unknown="retry"` (the provider knows the key and does it once), `verify=` (ask the provider),
`on_unknown="ask"` (ask a person), `on_unknown="fail"`. `undo=` is its compensation.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, overload

from perdure.core.budgets import Cost
from perdure.core.limits import EFFECT_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.core.signature import Signature
from perdure.errors import NotInRun, NotSerializable, UsageError
from perdure.runtime.callables import Cpu, cpu_of, name_of
from perdure.runtime.dispatching import Dispatch, idempotency_key
from perdure.runtime.fitting import check_undo, check_verify
from perdure.runtime.frames import AgentFrame, StepFrame, frame
from perdure.runtime.settings import check_name
from perdure.runtime.step import UNSET, Step, StepOptions, as_retry, check_estimate, timeout_s

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

P = ParamSpec("P")
R = TypeVar("R")

OnUnknown = Literal["retry", "ask", "fail"]

KNOWN: Final[dict[str, list[weakref.ref[Effect[..., Any]]]]] = {}
"""Effects by where their code is, the newest last: how an undo finds its function, in another process and after the
run's code is over."""


@dataclass(frozen=True, slots=True)
class EffectPlan:
    """What is done where an effect's outcome is unknown, and how it is undone."""

    on_unknown: OnUnknown
    verify: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    code: str

    @property
    def policy(self) -> str:
        """Its word in the ledger."""
        return "verify" if self.verify is not None else self.on_unknown


class Effect(Step[P, R]):
    """A function that acts on the outside world."""

    plan: EffectPlan

    _owner: type | None = None
    """The class in which it is a method; of one that is bound, None."""

    @functools.cached_property
    def signature(self) -> Signature:
        """Its arguments as the ledger keeps them."""
        return Signature.of(self.fn, skip=())

    def called_with(self, recorded: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, from the ledger, with the defaults of those that it left out; without the object,
        where it was a method of one."""
        if self._owner is not None:
            try:
                return _filled(Signature.of(self.fn, skip=tuple(self.signature.params)[:1]), recorded)
            except NotSerializable:  # it was called through its class, with the object as an argument
                pass
        return _filled(self.signature, recorded)

    @property
    def undo(self) -> Callable[..., Any] | None:
        """What undoes it. A method, of an object that nobody knows any more, is a `UsageError`."""
        undo = self.plan.undo
        if undo is not None and self._has(undo) and not isinstance(undo, staticmethod):
            raise UsageError(
                f"{_where(undo)[1]} is a method, and nobody knows its object: another worker has called the effect. "
                "Declare an undo that works after a restart as well: a function, or a @staticmethod, which gets all it "
                "needs from the effect's result and arguments"
            )
        return undo

    def __set_name__(self, owner: type, name: str) -> None:
        if getattr(self.fn, "__qualname__", None) == f"{owner.__qualname__}.{getattr(self.fn, '__name__', '')}":
            self._owner = owner

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        bound = super().__get__(instance, owner)
        if instance is not None:
            plan = self.plan
            bound.plan = replace(plan, verify=self._of(instance, plan.verify), undo=self._of(instance, plan.undo))
        return bound

    def _of(self, instance: Any, beside: Any) -> Any:
        """What it has beside its body, as this object has it."""
        return beside.__get__(instance, type(instance)) if self._has(beside) else beside

    def _has(self, beside: Any) -> bool:
        """Whether this is an attribute of the class in which it is a method."""
        classes = () if self._owner is None else self._owner.__mro__
        return any(value is beside for each in classes for value in vars(each).values())

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        current = frame.get()
        if isinstance(current, StepFrame):
            raise NotInRun(
                f"effect {self.settings.name!r} was called inside the body of step {current.name!r}, where nothing "
                "would know of it after a crash; call it in the agent's own code"
            )
        return await super().__call__(*args, **kwargs)

    async def perform(
        self, at: SuperStep, key: str, digest: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # fmt: skip
        """See it to its outcome."""
        return await Dispatch(at, self, key, digest, args, kwargs).outcome()

    def _variant(self, fn: Callable[..., Any], settings: StepOptions) -> Self:
        variant = super()._variant(fn, settings)
        variant.plan = self.plan
        return variant

    def __repr__(self) -> str:
        return f"<effect {self.settings.name}>"


@overload
def effect(fn: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
@overload
def effect(fn: Callable[P, R], /) -> Effect[P, R]: ...
@overload
def effect(
    fn: Callable[P, Any],
    /,
    *,
    on_unknown: OnUnknown = ...,
    verify: Callable[..., Any] | None = ...,
    undo: Callable[..., Any] | None = ...,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    cpu: Literal["thread", "process"] | None = ...,
    returns: Any = ...,
    ignore_args: bool = ...,
    estimate: Cost | None = ...,
) -> Effect[P, Any]: ...
@overload
def effect(
    *,
    on_unknown: OnUnknown = ...,
    verify: Callable[..., Any] | None = ...,
    undo: Callable[..., Any] | None = ...,
    name: str | None = ...,
    retry: Retry | int | None = ...,
    timeout: float | str | timedelta | None = ...,
    cpu: Literal["thread", "process"] | None = ...,
    returns: Any = ...,
    ignore_args: bool = ...,
    estimate: Cost | None = ...,
) -> _Decorator: ...


def effect(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    on_unknown: OnUnknown = "ask",
    verify: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    name: str | None = None,
    retry: Retry | int | None = None,
    timeout: float | str | timedelta | None = UNSET,
    cpu: Literal["thread", "process"] | None = None,
    returns: Any = UNSET,
    ignore_args: bool = False,
    estimate: Cost | None = None,
) -> Any:
    """Make an effect of a function: `@effect`, `@effect(...)`, or `effect(callable, ...)`.

    `on_unknown`: what is done where nobody knows whether it happened. "retry" dispatches it again under the same
    `effect_key()`, for providers that do a key's work once. "ask" (the default) asks a person, in the inbox. "fail"
    raises `OutcomeUnknown`. `verify`: a function that asks the provider, `verify(key, args)`, with the key and a dict
    of the arguments; it returns `Happened(result)`, `DidNotHappen()` or `StillUnknown()`, and where it cannot tell,
    `on_unknown` is done. `undo`: called where the run fails or is cancelled after the effect was done, with its result
    and then as many of its arguments as it takes; it may be called more than once, and has its own `effect_key()`.

    The rest is as for `step`; `timeout` is five minutes if it is not given, and an effect in flight is seen to its end
    where the code around it is cancelled.
    """
    if fn is None:
        return functools.partial(
            effect, on_unknown=on_unknown, verify=verify, undo=undo, name=name, retry=retry, timeout=timeout, cpu=cpu,
            returns=returns, ignore_args=ignore_args, estimate=estimate,
        )  # fmt: skip
    if not callable(fn):
        raise UsageError(f"effect() takes a function or another callable, not {shown(fn)}")
    if isinstance(fn, Step):
        raise UsageError(f"{fn!r} is a step already; make an effect of the plain function")
    if on_unknown not in ("retry", "ask", "fail"):
        raise UsageError(f'on_unknown is {shown(on_unknown)}; it is "retry", "ask" or "fail" (or give verify=function)')
    for what, given in (("verify", verify), ("undo", undo)):
        if given is not None and not callable(given):
            raise UsageError(f"{what} is {shown(given)}; give a function")
        if isinstance(given, Effect):
            raise UsageError(f"{what} is {shown(given)}, and it is dispatched by itself; give the plain function")
    if undo is not None:
        check_undo(fn, undo)
    if verify is not None:
        check_verify(verify)
    settings = StepOptions(
        name=check_name("an effect's name", name or name_of(fn)),
        retry=as_retry(retry) if retry is not None else Retry(),
        timeout_s=EFFECT_TIMEOUT_S if timeout is UNSET else timeout_s(timeout),
        ignore_args=ignore_args,
        estimate=check_estimate(estimate),
    )
    made: Effect[..., Any] = Effect(fn, settings, cpu=_cpu(fn, cpu), returns=returns)
    made.plan = EffectPlan(on_unknown, verify, undo, code_of(fn, settings.name))
    _remember(made)
    return made


def effect_key() -> str:
    """In the body of an effect: the idempotency key for the provider, the same in every try, on every worker, after
    every restart. In an undo: the undo's own. Called outside of any run: a new one each time."""
    current = frame.get()
    if isinstance(current, StepFrame) and current.effect_key is not None:
        return current.effect_key
    if current is None:
        return idempotency_key(SystemRandom())
    where = "agent code" if isinstance(current, AgentFrame) else f"the body of step {current.name!r}"
    raise NotInRun(f"perdure.effect_key() was called in {where}; call it in the body of an effect")


def effect_of(code: str) -> Effect[..., Any] | None:
    """The effect at this place; None where there is none, or where there are several with different undos. (A closure
    is made anew by each call of the function around it; which of them a run's is, nobody can tell by its place.)"""
    if _undos(code) > 1:
        gc.collect()  # some may be garbage, which nobody here holds meanwhile
    return _living(code)[-1] if _undos(code) == 1 else None


def has_several(code: str) -> bool:
    """Whether the effects at this place have different undos."""
    return _undos(code) > 1


def _undos(code: str) -> int:
    """How many different undos the effects at this place have."""
    return len({each.plan.undo for each in _living(code)})


def _living(code: str) -> list[Effect[..., Any]]:
    return [each for ref in KNOWN.get(code, ()) if (each := ref()) is not None]


def _remember(made: Effect[..., Any]) -> None:
    code = made.plan.code
    at_the_top = "<" not in code and isinstance(made.fn, types.FunctionType)  # loaded anew, it is the same one
    others = [] if at_the_top else [ref for ref in KNOWN.get(code, ()) if ref() is not None]
    KNOWN[code] = [*others, weakref.ref(made)]


def _filled(signature: Signature, recorded: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = signature.decode(recorded)
    bound = signature.bind(args, kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def code_of(fn: Callable[..., Any], name: str) -> str:
    """Where the function of an effect of this name is, as the ledger says it."""
    module, qualname = _where(fn)
    return f"{module}:{qualname}" if name == qualname.rpartition(".")[2] else f"{module}:{qualname}[{name}]"


def _where(fn: Callable[..., Any]) -> tuple[str, str]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(fn, "__module__", "?")
    return _of_main() if module == "__main__" else module, fn.__qualname__


def _of_main() -> str:
    """The name by which another process imports what this one executes: a worker of `shop:app` undoes what
    `python shop.py` has done."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return "__main__" if file is None else Path(file).stem


def _cpu(fn: Callable[..., Any], cpu: str | None) -> Cpu:
    chosen = cpu_of(fn, cpu)
    if chosen == "process":
        raise UsageError(f'cpu="process" is not for effects: {name_of(fn)} could not ask for its effect_key() there')
    return chosen


class _Decorator:
    """Only for type checkers: what `@effect(...)` is before it meets its function."""

    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> Effect[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Effect[P, R]: ...
    def __call__(self, fn: Any, /) -> Any: ...
