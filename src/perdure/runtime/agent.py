"""Agents: registered async functions, and how their arguments, state and results are recorded."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from perdure.core.budgets import Limits
from perdure.core.codec import Codec, codec_for
from perdure.core.endings import Again
from perdure.core.errors import text_of
from perdure.core.mutability import can_change
from perdure.core.retry import Retry
from perdure.core.signature import Signature, param_annotation, return_annotation
from perdure.errors import UsageError
from perdure.runtime.callables import is_async, name_of
from perdure.runtime.step import Durability

P = ParamSpec("P")
R = TypeVar("R")

STATE = "state"
"""The keyword-only parameter that makes an agent stateful."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent's runs are queued, limited and retried."""

    name: str
    retry: Retry
    queue: str = "default"
    timeout_s: float | None = None
    durability: Durability | None = None
    budget: Limits | None = None
    """What each of its runs may use."""


class Agent(Generic[P, R]):
    """A registered async function. Calling it directly calls the plain function (for its own unit tests)."""

    def __init__(self, fn: Callable[P, Awaitable[R]], options: AgentOptions) -> None:
        if not is_async(fn):
            raise UsageError(f"agent {name_of(fn)} is a plain def; declare it with async def")
        self.fn = fn
        self.settings = options
        self.signature = Signature.of(fn, skip=(STATE,))
        self.state = StateType.of(fn)
        self._codec: Codec | None = None
        functools.update_wrapper(self, fn, updated=())

    @property
    def name(self) -> str:
        """The name its runs carry."""
        return self.settings.name

    @property
    def codec(self) -> Codec:
        """How its result is recorded: by its return annotation, without `Again`."""
        if self._codec is None:
            self._codec = codec_for(_without_again(return_annotation(self.fn)))
        return self._codec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"


class StateType:
    """The declared state of an agent: its type, its first value, and its way to plain data and back."""

    def __init__(self, annotation: Any, default: Any) -> None:
        self.annotation = annotation
        self._default = default

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> StateType | None:
        """From the function's `state` parameter; None if it has none."""
        parameter = inspect.signature(fn).parameters.get(STATE)
        if parameter is None:
            return None
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise UsageError(f"agent {name_of(fn)}: state must be keyword-only; write (…, *, state: MyState)")
        if parameter.annotation is inspect.Parameter.empty:
            raise UsageError(f"agent {name_of(fn)}: state needs a type; write state: MyState (a dataclass, or dict)")
        annotation = _StateAnnotation(fn)
        annotation.check_if_known()
        return cls(annotation, parameter.default)

    @property
    def type(self) -> Any:
        """The annotation, resolved when first needed."""
        if isinstance(self.annotation, _StateAnnotation):
            self.annotation = self.annotation.resolve()
        return self.annotation

    def first(self) -> Any:
        """The state of a thread that has none yet: the parameter's default, else the type called without arguments."""
        if self._default is not inspect.Parameter.empty:
            return copy.deepcopy(self._default)
        make = getattr(self.type, "__origin__", self.type)
        try:
            return make()
        except Exception as error:  # the edge of user code: a required field, a validator
            name = getattr(make, "__name__", make)
            raise UsageError(
                f"a new thread's state cannot be made by calling {name}(): {text_of(error)}; give its fields defaults, "
                "or give the state parameter a default"
            ) from error

    def dump(self, value: Any) -> Any:
        """The state as plain data."""
        return codec_for(self.type).to_builtins(value)

    def load(self, data: Any) -> Any:
        """The state from plain data."""
        return codec_for(self.type).from_builtins(data)


class _StateAnnotation:
    """An annotation not looked at yet: the name may be defined further down in its module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def resolve(self) -> Any:
        found = param_annotation(self.fn, STATE)
        if not can_change(found):
            raise UsageError(
                f"agent {name_of(self.fn)}: its state is {getattr(found, '__name__', found)}, which cannot be changed "
                "in place, so it would be saved as it began; declare a dataclass, a Struct or a model that is not "
                "frozen, a dict or a list"
            )
        return found

    def check_if_known(self) -> None:
        """Refuse a type that is of no use, if it can be looked at already."""
        try:
            param_annotation(self.fn, STATE)
        except UsageError:
            return
        self.resolve()


def _without_again(annotation: Any) -> Any:
    """`str | Again` records a `str`; a bare `Again` records nothing."""
    if annotation is Again:
        return type(None)
    arguments = getattr(annotation, "__args__", ())
    if Again not in arguments:
        return annotation
    rest = [argument for argument in arguments if argument is not Again]
    return functools.reduce(lambda left, right: left | right, rest)
