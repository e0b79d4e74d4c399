"""Whether a value of a type can be changed in place. An agent's state is saved as it stands at the end of a super-step,
so what cannot be changed is saved as it began.

A type that is not known to be fixed can be changed: nobody is refused for a guess.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Iterable
from typing import Any, Final

_FIXED: Final = (
    int, float, complex, str, bytes, types.NoneType, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta,
    datetime.tzinfo, uuid.UUID, enum.Enum,
)  # fmt: skip

_HOLDERS: Final = (tuple, frozenset)
"""What is fixed itself; what is in it may not be."""


def can_change(annotation: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether a value of this type, or something in it, can be changed. `within` are the types around it."""
    if annotation in within:
        return False  # a type that holds itself is as changeable as the rest of it
    around = (*within, annotation)
    if isinstance(inner := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None), type):
        return can_change(inner, around)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return can_change(arguments[0], around)
    if origin is typing.Literal:
        return False
    if origin in (typing.Union, types.UnionType):
        return _any(arguments, around)
    kind = origin or annotation
    if annotation is None:
        return False
    if not isinstance(kind, type):
        return True
    if issubclass(kind, _HOLDERS):
        return _any([each for each in arguments if each is not ...], around) if arguments else _held(kind, around)
    return not issubclass(kind, _FIXED) and (not _is_frozen(kind) or _held(kind, around))


def _any(parts: Iterable[Any], around: tuple[Any, ...]) -> bool:
    return any(can_change(part, around) for part in parts)


def _held(kind: type, around: tuple[Any, ...]) -> bool:
    """Whether something in the fields of a class can be changed."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, AttributeError, SyntaxError, TypeError):  # a name that cannot be found: nobody knows
        return True
    return _any(hints.values(), around)


def _is_frozen(kind: type) -> bool:
    """Whether it is a dataclass, a Struct or a model that says so."""
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    config = getattr(kind, "model_config", None)
    if isinstance(config, dict):
        return bool(config.get("frozen"))
    return bool(getattr(getattr(kind, "__struct_config__", None), "frozen", False))
