"""What an effect has beside its body is called with what is known of the effect: an undo with its result and then its
arguments, a verify with its key and its arguments.

How an undo takes them is up to it, so whether it can be called at all is looked at where it is declared: a mistake
there would else show first when something is to be undone. Only plain functions are looked at. What a method is called
with depends on its object; what has no signature is believed.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from perdure.core.signature import function_name
from perdure.errors import UsageError
from perdure.runtime.step import Step


def fitting(
    undo: Callable[..., Any], result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of these an undo takes: by position the first, by name those that it has."""
    params = inspect.signature(undo).parameters.values()
    positional = [param for param in params if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    given = (result, *args)
    if not any(param.kind is param.VAR_POSITIONAL for param in params):
        given = given[: len(positional)]
    free = {param.name for param in positional[len(given) :]}
    free |= {param.name for param in params if param.kind is param.KEYWORD_ONLY}
    anything = any(param.kind is param.VAR_KEYWORD for param in params)
    return given, {name: value for name, value in kwargs.items() if anything or name in free}


def check_undo(fn: Callable[..., Any], undo: Callable[..., Any]) -> None:
    """Refuse an undo that no call of this effect has arguments for."""
    own, other = _signature(fn), _signature(undo)
    if own is None or other is None:
        return
    args, kwargs = _most(own, other)
    try:
        taken, named = fitting(undo, "result", args, kwargs)
        other.bind(*taken, **named)
    except TypeError as error:
        raise UsageError(
            f"undo={_text(undo, other)} cannot be called: {error}. An undo gets the effect's result, then as many of "
            f"the arguments of {_text(fn, own)} as it takes: by position those that the effect takes by position, by "
            "name those that it takes by name only. Take no others, or give them a default"
        ) from None


def check_verify(verify: Callable[..., Any]) -> None:
    """Refuse a verify that cannot be called with a key and the arguments."""
    own = _signature(verify)
    if own is None:
        return
    try:
        own.bind("key", {})
    except TypeError as error:
        raise UsageError(
            f"verify={_text(verify, own)} cannot be called: {error}. It is called as verify(key, args), with the "
            "effect's idempotency key and a dict of its arguments; take both"
        ) from None


def _most(own: inspect.Signature, undo: inspect.Signature) -> tuple[tuple[str, ...], dict[str, str]]:
    """The most that a call of an effect has, for this undo: the names stand for the values."""
    params = own.parameters.values()
    args = [param.name for param in params if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    if any(param.kind is param.VAR_POSITIONAL for param in params):
        args += undo.parameters
    named = [param.name for param in params if param.kind is param.KEYWORD_ONLY]
    if any(param.kind is param.VAR_KEYWORD for param in params):
        named += undo.parameters
    return tuple(args), {name: name for name in named}


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a plain function, or of a step made of one; None of anything else."""
    inner = fn.fn if isinstance(fn, Step) else fn
    if not isinstance(inner, types.FunctionType) or _is_in_class(inner):
        return None
    try:
        return inspect.signature(inner)
    except (TypeError, ValueError):  # it wraps something that has none
        return None


def _is_in_class(fn: types.FunctionType) -> bool:
    where = fn.__qualname__.rpartition(".")[0]
    return bool(where) and not where.endswith("<locals>")


def _text(fn: Callable[..., Any], own: inspect.Signature) -> str:
    """A function as its author wrote it, without its types."""
    params = [param.replace(annotation=param.empty) for param in own.parameters.values()]
    return f"{function_name(fn)}{own.replace(parameters=params, return_annotation=own.empty)}"
