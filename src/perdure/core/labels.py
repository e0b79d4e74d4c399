"""Labels: the name of a message's type, by which a receiver picks what it can take.

The sender's value has one, the name of its class; a receiver names types, or labels themselves. Only the name counts,
since a record names no class to import: two classes of one name have one label, and a subclass has its own. A
TypedDict is a dict to its sender, and so to its receiver.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Final, Literal, NewType, TypeVar

from perdure.core.codec import codec_for
from perdure.core.limits import NAME_CHARS_MAX
from perdure.core.paths import SCALARS
from perdure.core.shown import shown
from perdure.errors import UsageError

_UNIONS: Final = (typing.Union, types.UnionType)
_ANY: Final = (Any, object)

_ANYTHING: Final = ""
"""What stands for all labels; none is empty."""


def label_of(value: Any) -> str:
    """The label of a message."""
    return _name(type(value))


def labels_of(type: Any) -> tuple[str, ...]:
    """The labels of what is to be received, sorted: of a type, or of the members of a union; a text is a label itself.
    Empty for None and `Any`, which mean any message."""
    found = set() if type is None else set(_labels(type))
    return () if _ANYTHING in found else tuple(sorted(found))


def member_of(type: Any, label: str) -> Any:
    """Of what is to be received, the type that a message with this label is read as: the member of a union that has the
    label, so that a union need not be one that bytes alone can tell apart. `Any` where text says what is received."""
    for member in _members(type):
        if label in labels_of(member):
            return Any if isinstance(member, str) else member
    return Any


def message_bytes(value: Any) -> bytes:
    """The record of a message, by its own type: what it is declared as where it is sent. Raises `NotSerializable`."""
    cls = type(value)
    return codec_for(Any if cls in (*SCALARS, list, dict) else cls).encode(value)


def _members(annotation: Any) -> Iterator[Any]:
    """The types of a union, or the only one."""
    annotation = getattr(annotation, "__value__", annotation)  # an alias made by `type X = ...`
    if typing.get_origin(annotation) in _UNIONS:
        for member in typing.get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _labels(annotation: Any) -> Iterator[str]:
    for member in _members(annotation):
        yield from _labels_of_member(member)


def _labels_of_member(annotation: Any) -> Iterator[str]:
    origin = typing.get_origin(annotation)
    if isinstance(annotation, str):
        yield _checked(annotation)
    elif annotation is None:
        yield _name(types.NoneType)
    elif any(annotation is any_one for any_one in _ANY):
        yield _ANYTHING
    elif origin is typing.Annotated:
        yield from _labels(typing.get_args(annotation)[0])
    elif origin is Literal:
        yield from (label_of(value) for value in typing.get_args(annotation))
    elif isinstance(annotation, NewType):
        yield from _labels(annotation.__supertype__)
    elif typing.is_typeddict(annotation) or typing.is_typeddict(origin):
        yield _name(dict)
    elif isinstance(origin or annotation, type):
        yield _name(origin or annotation)
    else:
        raise _unlabelled(annotation)


def _name(cls: type) -> str:
    return _checked(cls.__name__)


def _checked(label: str) -> str:
    if not 0 < len(label) <= NAME_CHARS_MAX or "\0" in label or any("\ud800" <= char <= "\udfff" for char in label):
        raise UsageError(
            f"{label[:40]!r} cannot be the label of a message: it must have 1 to {NAME_CHARS_MAX} characters"
        )
    return label


def _unlabelled(annotation: Any) -> UsageError:
    if isinstance(annotation, TypeVar):
        return UsageError(f"the type variable {annotation} names no type of messages; give the type itself")
    return UsageError(
        f"{shown(annotation)} names no type of messages; give a class, a union of classes, or the name of one as text"
    )
