"""Formats in the schemas of answers: what a text must look like, where a type says it and msgspec's schema of it does
not. So whoever answers is told, and not whoever asked.

A type's schema is walked beside the type: dates and times with and without a zone, bytes, and the keys of dicts, which
in JSON are text.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect as mi

READ_AS: Final[dict[str, type]] = {
    "date-time": datetime, "date": date, "time": time, "partial-time": time, "duration": timedelta, "uuid": UUID,
    "decimal": Decimal, "base64": bytes, "byte": bytes,
}  # fmt: skip
"""Formats that a text is held to by trying whether it can be read as that type, as the asking agent will."""

KEYS_READ_AS: Final[dict[str, Any]] = {"integer-key": dict[int, None], "number-key": dict[float, None]}
"""The same for keys of a dict."""

ZONED: Final = "([Zz]|[+-][0-9]{2}:?[0-9]{2})$"
NAIVE: Final = "[Tt ][0-9:.]+$"
NAIVE_TIME: Final = "^[0-9:.]+$"

_KEYS: Final[tuple[tuple[type[mi.Type], str], ...]] = (
    (mi.IntType, "integer-key"), (mi.FloatType, "number-key"), (mi.DateType, "date"), (mi.UUIDType, "uuid"),
    (mi.DecimalType, "decimal"), (mi.TimeDeltaType, "duration"),
)  # fmt: skip


def add_formats(schema: dict[str, Any], annotation: Any) -> None:
    """Put into the schema of a type what that leaves out."""
    _Formats(schema.get("$defs", {})).add(schema, mi.type_info(annotation))


def checks() -> dict[str, Callable[[object], bool]]:
    """By format: whether a text is one. They return True or raise `ValueError`."""
    of_texts = {name: _reads_as(kind) for name, kind in READ_AS.items()}
    return of_texts | {name: _is_key_of(kind) for name, kind in KEYS_READ_AS.items()}


def _reads_as(kind: type) -> Callable[[object], bool]:
    def reads(text: object) -> bool:
        if isinstance(text, str):
            msgspec.convert(text, kind)
        return True

    return reads


def _is_key_of(kind: Any) -> Callable[[object], bool]:
    def reads(text: object) -> bool:
        if isinstance(text, str):
            msgspec.convert({text: None}, kind, str_keys=True)
        return True

    return reads


class _Formats:
    """The walk: each part of the schema with the type that it is of."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._done: set[str] = set()

    def add(self, part: Any, kind: mi.Type) -> None:
        while isinstance(kind, mi.Metadata):
            kind = kind.type
        if not isinstance(part, dict):
            return
        if isinstance(part.get("$ref"), str):
            name = part["$ref"].rpartition("/")[2]
            if name in self._done or name not in self._definitions:
                return
            self._done.add(name)
            part = self._definitions[name]
        match kind:
            case mi.DateTimeType() | mi.TimeType():
                _of_time(part, kind)
            case mi.BytesType() | mi.ByteArrayType() | mi.MemoryViewType():
                part.setdefault("format", "base64")
            case _:
                self._inside(part, kind)

    def _inside(self, part: dict[str, Any], kind: mi.Type) -> None:
        match kind:
            case mi.CollectionType():
                self.add(part.get("items"), kind.item_type)
            case mi.TupleType():
                self._each(part.get("prefixItems"), kind.item_types)
            case mi.DictType():
                self._names(part, kind.key_type)
                self.add(part.get("additionalProperties"), kind.value_type)
            case mi.UnionType():
                self._union(part, kind)
            case mi.StructType() | mi.DataclassType() | mi.TypedDictType() | mi.NamedTupleType():
                self._fields(part, kind)

    def _each(self, parts: Any, kinds: tuple[mi.Type, ...]) -> None:
        for part, kind in zip(parts or (), kinds, strict=False):
            self.add(part, kind)

    def _names(self, part: dict[str, Any], kind: mi.Type) -> None:
        while isinstance(kind, mi.Metadata):
            kind = kind.type
        names: dict[str, Any] = part.get("propertyNames", {})
        if isinstance(kind, mi.DateTimeType | mi.TimeType):
            _of_time(names, kind)
        elif isinstance(kind, mi.BytesType):
            names.setdefault("format", "base64")
        else:
            for wanted, name in _KEYS:
                if isinstance(kind, wanted):
                    names.setdefault("format", name)
        if names:
            part["propertyNames"] = names

    def _union(self, part: dict[str, Any], kind: mi.UnionType) -> None:
        """Its alternatives: msgspec puts those that are objects after the others, and what is None last."""
        objects, others = [], []
        for each in kind.types:
            bare = each
            while isinstance(bare, mi.Metadata):
                bare = bare.type
            if isinstance(bare, mi.StructType) and not bare.array_like:
                objects.append(bare)
            elif not isinstance(bare, mi.NoneType):
                others.append(bare)
        choices = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
        if len(objects) > 1 and len(choices) == len(others) + 1:
            choices += choices.pop().get("anyOf", ())
        if len(choices) == len(others) + len(objects):
            self._each(choices, (*others, *objects))

    def _fields(
        self, part: dict[str, Any], kind: mi.StructType | mi.DataclassType | mi.TypedDictType | mi.NamedTupleType
    ) -> None:  # fmt: skip
        if "prefixItems" in part:
            tags = len(part["prefixItems"]) - len(kind.fields)
            self._each(part["prefixItems"][tags:], tuple(field.type for field in kind.fields))
            return
        properties = part.get("properties", {})
        for field in kind.fields:
            self.add(properties.get(field.encode_name), field.type)


def _of_time(part: dict[str, Any], kind: mi.DateTimeType | mi.TimeType) -> None:
    of_day = isinstance(kind, mi.TimeType)
    part.setdefault("format", "time" if of_day else "date-time")
    if kind.tz is not None:
        part.setdefault("pattern", ZONED if kind.tz else NAIVE_TIME if of_day else NAIVE)
