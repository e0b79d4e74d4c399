"""Where inside a value something is wrong: the paths in error messages.

Nothing here runs while values are fine. `locate` finds the part that an encoder refuses; `compare` finds the part that
came back as something else. Both walk without recursion, because the value may be deeper than the stack, or a cycle.
Paths look like `$.cart.items[3]["unit price"]`.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

PATH_CHARS_MAX: Final = 200
"""A path longer than this is cut: past it nobody reads, and a cycle would print for ever."""

SCALARS: Final = (type(None), bool, int, float, str, bytes)
"""What a record holds as it is."""

SUBCLASSED: Final = (str, int, float, bytes)
"""Scalars that libraries derive from (`numpy.float64`, `markupsafe.Markup`); a declared type makes them plain again."""

_BUILTIN: Final = frozenset((*SCALARS, list, tuple, dict, set, frozenset, bytearray, memoryview))

_NO_LOSS: Final = frozenset(((tuple, list), (int, float), (bytearray, bytes), (memoryview, bytes)))
"""What may come back as another type without anybody losing anything."""


_IN_DICT: Final = ("__dict__",)
"""Stands for the fields of a Pydantic model, which are whatever its `__dict__` and its extras hold."""


_PRUNED: Final = (dict, list)
"""Containers that are worth a look in C before their parts are looked at one by one."""


class Found(NamedTuple):
    """The innermost part that is wrong."""

    path: str
    part: object
    reason: str


DEPTH_EXPLAINED_MAX: Final = 300
"""How deep a refused part is looked for: each level encodes what is below it once more."""


def type_name(cls: type) -> str:
    """The qualified name of a class, without `builtins.`: a name for people, never one to import."""
    if cls is type(None):
        return "None"
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def a_type(cls: type) -> str:
    """A value of a class, in words: `a dict`, `an object`."""
    name = type_name(cls)
    return f"an {name}" if name[0].lower() in "aeio" else f"a {name}"


def scalar(value: str | int | float | bytes) -> object:
    """The plain scalar in an instance of a subclass, whatever that overrides."""
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
    return bytes.__getitem__(value, slice(None))


def is_plain(value: object) -> bool:
    """Whether a value consists of nothing but exact builtins.

    `marshal` writes exact builtin types and refuses everything else, subclasses and enums too, which makes it the
    fastest such test there is: C all the way, a third of the price of encoding. The bytes are thrown away.
    """
    try:
        marshal.dumps(value, 2)  # type: ignore[arg-type]  # refusing is the point
    except ValueError:
        return False
    return True


def locate(value: object, encode: Callable[[object], object]) -> Found:
    """The innermost part of `value` that `encode` refuses, and why; `value` itself if its parts are all fine."""
    path, reason = "$", _refusal(value, encode) or "it cannot be encoded"
    above: set[int] = set()
    while id(value) not in above:
        if len(above) > DEPTH_EXPLAINED_MAX:
            return Found(clip(path), value, "it is nested too deeply")
        above.add(id(value))
        for step, child in _parts(value):
            refusal = _refusal(child, encode)
            if refusal is not None:
                path, value, reason = path + step, child, refusal
                break
        else:
            return Found(clip(path), value, reason)
    return Found(clip(path), value, "it contains itself")


def compare(value: object, back: object, *, declared: bool) -> Found | None:
    """The first part of `value` that is of another type in `back`, or missing there; None if they are the same.

    Some changes are no loss and count as the same: a tuple as a list, an int as a float, and, where the type was
    `declared`, whatever the declaration made of builtins, and an instance of a subclass of dict, list or a scalar.
    """
    todo: list[tuple[object, object, str]] = [(value, back, "$")]
    while todo:
        here, there, path = todo.pop()
        if type(here) in _PRUNED and is_plain(here) and here == there:
            continue
        found = _difference(here, there, declared=declared)
        if found is not None:
            return Found(clip(path), here, found)
        todo.extend((a, b, path + step(key)) for step, key, a, b in _pairs(here, there) if not _same_scalar(a, b))
    return None


def _same_scalar(a: object, b: object) -> bool:
    """Whether two parts need no closer look: what is encoded as it is comes back as it is, NaN and all."""
    return a is b or (type(a) is type(b) and type(a) in SCALARS)


def _refusal(value: object, encode: Callable[[object], object]) -> str | None:
    try:
        encode(value)
    except RecursionError:
        return "it is nested too deeply"
    except UnicodeEncodeError:
        return "the text has a lone surrogate, which UTF-8 cannot hold"
    except OverflowError:
        return "the number does not fit into 64 bits; record it as text"
    except (TypeError, ValueError) as error:
        return str(error).rstrip(".") or type(error).__name__
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """The parts of a value, each with its step in the path; a dict's keys before its values."""
    match value:
        case dict():
            yield from ((_of_key(key), key) for key in value)
            yield from ((_key_step(key), part) for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            yield from ((_index_step(n), part) for n, part in enumerate(value))
        case _:
            fields = fields_of(value)
            if fields is not None:
                yield from ((_key_step(name), part) for name, part in fields.items())


def fields_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of a dataclass, Struct, attrs or Pydantic instance, as they are; None for anything else."""
    cls: Any = type(value)
    names = _field_names(cls)
    if names is None:
        return None
    if names is _IN_DICT:
        extra = value.__pydantic_extra__
        return {**value.__dict__, **extra} if extra else value.__dict__
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


@lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...] | None:
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(field.name for field in cls.__attrs_attrs__)
    return _IN_DICT if hasattr(cls, "__pydantic_extra__") and hasattr(cls, "__pydantic_validator__") else None


def _difference(here: object, there: object, *, declared: bool) -> str | None:
    """What is wrong with `there` as the recorded form of `here`, their parts left aside; None if nothing is."""
    cls, back = type(here), type(there)
    if cls is back and cls not in _BUILTIN and not declared:
        return f"{a_type(cls)} is not plain data"
    if cls is back or (cls, back) in _NO_LOSS:
        return _lost_key(here, there)
    if declared and cls in _BUILTIN and not (cls in (set, frozenset) and back is list):
        return _lost_key(here, there)
    if declared and issubclass(cls, back) and not (issubclass(cls, Enum | tuple) or _is_record(here)):
        return _lost_key(here, there)
    return f"{a_type(cls)} would come back as {a_type(back)}"


def _is_record(value: object) -> bool:
    """Whether a value is an instance of a class with declared fields: such a class never changes silently."""
    return fields_of(value) is not None


def _lost_key(here: object, there: object) -> str | None:
    """A dict's key for which the declared type has no place."""
    if not isinstance(here, dict):
        return None
    if isinstance(there, dict):
        lost = [] if len(here) == len(there) else [key for key in here if key not in there]
    elif isinstance(there, msgspec.Struct):
        lost = [key for key in here if key not in there.__struct_encode_fields__]
    elif dataclasses.is_dataclass(there):
        lost = [key for key in here if not hasattr(there, str(key))]
    else:
        lost = []
    return f"the declared type has no place for the key {_quote(lost[0])}" if lost else None


def _pairs(here: object, there: object) -> Iterator[tuple[Callable[[Any], str], object, object, object]]:
    """The parts of a value beside the parts of its recorded form; before them, how a path goes there."""
    if isinstance(here, dict):
        if isinstance(there, dict):
            yield from _dict_pairs(here, there)
    elif isinstance(here, (list, tuple)):
        if isinstance(there, (list, tuple)):
            yield from ((_index_step, n, a, b) for n, (a, b) in enumerate(zip(here, there, strict=False)))
    elif isinstance(here, (set, frozenset)):
        if isinstance(there, (set, frozenset)) and here != there:
            parts = zip(_by_type(here), _by_type(there), strict=False)
            yield from ((_index_step, n, a, b) for n, (a, b) in enumerate(parts))
    else:
        ours, theirs = fields_of(here), fields_of(there)
        if ours is not None and theirs is not None:
            yield from ((_key_step, name, ours[name], theirs[name]) for name in ours if name in theirs)


def _dict_pairs(
    here: dict[Any, Any], there: dict[Any, Any]
) -> Iterator[tuple[Callable[[Any], str], object, object, object]]:
    """Keys pair up by their order, which encoding keeps; where fields were added, by name."""
    if len(here) == len(there):
        for (key, a), (other, b) in zip(here.items(), there.items(), strict=True):
            yield _of_key, key, key, other
            yield _key_step, key, a, b
    else:
        yield from ((_key_step, key, part, there[key]) for key, part in here.items() if key in there)


def _by_type(values: set[Any] | frozenset[Any]) -> list[Any]:
    return sorted(values, key=lambda part: type_name(type(part)))


def _index_step(n: int) -> str:
    return f"[{n}]"


def _of_key(key: object) -> str:
    return f" key {_quote(key)}"


def _key_step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isascii() and key.isidentifier() else f"[{_quote(key)}]"


def _quote(key: object) -> str:
    """A key in printable ASCII, cut: it goes into messages, logs and columns."""
    if not isinstance(key, (*SCALARS, tuple)):
        return type_name(type(key))
    text = ascii(key)
    return text if len(text) <= 60 else text[:57] + "..."


def clip(path: str) -> str:
    """A path, cut where it is too long to read."""
    return path if len(path) <= PATH_CHARS_MAX else path[: PATH_CHARS_MAX - 3] + "..."
