"""Digests: the address of stored bytes, and the fingerprint of a step's arguments.

Arguments are compared, not recorded, so everything may be digested. What is data counts by its content; what is not
(clients, sessions, functions, `self`) counts by the qualified name of its type or of the function itself. Never by
identity, address or hash, which differ in the next process.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

import msgspec

from perdure.core import models
from perdure.core.paths import SUBCLASSED, fields_of, scalar, type_name

DIGEST_BYTES: Final = 20
"""160 bits: no two contents of one thread ever meet by chance."""


def digest(data: bytes) -> bytes:
    """The address of some bytes."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def digest64(value: object) -> int:
    """A signed 64-bit fingerprint of a value, usually `(args, kwargs)`; never 0, which stands for "not compared".

    Dicts and sets count without their order. Equal values of different types (`1` and `1.0`) differ; a dataclass and
    a dict of its fields do not.
    """
    return int.from_bytes(blake2b(canonical(value), digest_size=8).digest(), "big", signed=True) or 1


def canonical(value: object) -> bytes:
    """Bytes that are the same for the same content, in every process. Not for decoding."""
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # Keys other than str, sets of mixed types, huge ints, lone surrogates, cycles: rare, so the slow way will do.
        return _encode(_plain(value, ()))


def name_of(value: Any) -> str:
    """What stands for a value that is not data: the name of a function or class, else the name of its type."""
    function = getattr(value, "__func__", value)
    name = getattr(function, "__qualname__", None)
    if isinstance(name, str):
        return f"{getattr(function, '__module__', None) or 'builtins'}.{name}"
    return type_name(type(value))


def _stand_in(value: Any) -> object:
    """msgspec's hook for what it does not know."""
    if models.is_model(type(value)):
        return models.model_fields(value)
    return scalar(value) if isinstance(value, SUBCLASSED) else name_of(value)


_encode: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder(order="deterministic", enc_hook=_stand_in).encode


def _plain(value: Any, above: tuple[int, ...]) -> object:
    """The same content in shapes that the encoder takes, containers sorted by their parts' canonical bytes."""
    if id(value) in above or len(above) > 200:
        return f"... {type_name(type(value))}"
    inside = (*above, id(value))
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass")
        case int() if not -(2**63) <= value < 2**64:
            return f"int {hex(value)}"
        case dict():
            pairs = [(canonical_part(key, inside), canonical_part(part, inside)) for key, part in value.items()]
            return ["dict", *sorted(pairs)]
        case set() | frozenset():
            return ["set", *sorted(canonical_part(part, inside) for part in value)]
        case list() | tuple():
            return [canonical_part(part, inside) for part in value]
    fields = fields_of(value)
    return value if fields is None else canonical_part(fields, inside)


def canonical_part(value: object, above: tuple[int, ...]) -> bytes:
    """The canonical bytes of a part, `above` being the containers it is in."""
    return _encode(_plain(value, above))
