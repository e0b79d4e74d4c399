"""What a declared type asks of the codec: its hooks, its decoders, and how closely its values must be looked at.

Worked out once for each type, when the agent or step is registered: so a type that cannot be recorded is refused
there, before anything has run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, Never, NoReturn

import msgspec

from perdure.core import models
from perdure.core.paths import SUBCLASSED, a_type, scalar, type_name
from perdure.errors import UsageError

Hook = Callable[[Any], Any]

_UNDECLARED: Final = (Any, object, inspect.Parameter.empty)

_REMEDY: Final = (
    "Declare data: builtins, a dataclass, a msgspec Struct, a TypedDict or a Pydantic model; return the data behind "
    "a handle or an iterator, not the thing itself."
)


class Declared(msgspec.Struct, frozen=True):
    """A declared type, ready for use."""

    annotation: Any
    closed: bool
    """Nothing in it is `Any`, and msgspec alone builds it: equal bytes then mean an equal value."""
    encode_hook: Hook | None
    decode: Callable[[bytes], Any]
    from_builtins: Hook


def declared(annotation: Any) -> Declared:
    """Prepare a declared type. Raises `UsageError`, naming it and the remedy, if its values cannot be recorded."""
    if any(annotation is no for no in _UNDECLARED):
        return Declared(Any, False, None, msgspec.msgpack.Decoder().decode, lambda data: data)
    if annotation in (NoReturn, Never):
        annotation = None
    try:
        return _built_by_msgspec(annotation)
    except (TypeError, NameError, AttributeError, RecursionError) as error:
        if models.mentions_pydantic(annotation):
            return _built_by_pydantic(annotation)
        raise UsageError(f"{annotation_name(annotation)} cannot be recorded: {error}. {_remedy(error)}") from error


def annotation_name(annotation: Any) -> str:
    """A declared type as its author wrote it, more or less."""
    return type_name(annotation) if type(annotation) is type else str(annotation)


def _built_by_msgspec(annotation: Any) -> Declared:
    decode = msgspec.msgpack.Decoder(annotation, dec_hook=decode_custom).decode
    closed, by_pydantic = True, False
    for part in _parts(msgspec.inspect.type_info(annotation), set()):
        match part:
            case msgspec.inspect.AnyType():
                closed = False
            case msgspec.inspect.CustomType(cls=cls):
                _require_known(cls)
                closed, by_pydantic = False, by_pydantic or cls is not object
            case msgspec.inspect.RawType() | msgspec.inspect.ExtType():
                raise TypeError("raw msgpack is not data")

    def from_builtins(data: Any) -> Any:
        return msgspec.convert(data, annotation, builtin_types=(bytes,), dec_hook=decode_custom)

    return Declared(annotation, closed, _encode_with_pydantic if by_pydantic else _encode_base, decode, from_builtins)


def _built_by_pydantic(annotation: Any) -> Declared:
    """For what msgspec cannot tell apart and Pydantic can: unions of models above all."""
    validate, untyped = models.adapter(annotation), msgspec.msgpack.Decoder().decode
    return Declared(annotation, False, _encode_with_pydantic, lambda data: validate(untyped(data)), validate)


def _parts(node: Any, seen: set[int]) -> Iterator[msgspec.inspect.Type]:
    """Every type inside a described type, itself first; recursive types once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.Type):
        yield node
    if isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from _parts(getattr(node, name), seen)
    elif isinstance(node, tuple):
        for part in node:
            yield from _parts(part, seen)


def _require_known(cls: Any) -> None:
    if cls is not object and not models.mentions_pydantic(cls):
        raise TypeError(f"msgspec knows no {annotation_name(cls)}")


def _remedy(error: Exception) -> str:
    if isinstance(error, NameError):
        return "Import that name at run time, not only under TYPE_CHECKING."
    if "union" in str(error):
        return "Use tagged msgspec Structs (`class A(Struct, tag=True)`), or Pydantic models, for a union."
    return _REMEDY


def _encode_base(part: Any) -> Any:
    """A value msgspec does not know: a model, or an instance of a subclass of a scalar, as the scalar."""
    if models.is_model(type(part)):
        return models.model_fields(part)
    if isinstance(part, SUBCLASSED) and not isinstance(part, Enum):
        return scalar(part)
    raise TypeError(f"{a_type(type(part))} is not data")


def _encode_with_pydantic(part: Any) -> Any:
    try:
        return _encode_base(part)
    except TypeError:
        return models.encode_part(part)


def decode_custom(cls: Any, data: Any) -> Any:
    """msgspec's hook for what it does not build itself."""
    if cls is object:
        return data
    return models.decode_model(cls, data) if models.is_model(cls) else models.adapter(cls)(data)
