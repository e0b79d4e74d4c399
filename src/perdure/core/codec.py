"""Values to bytes and back: msgpack, decoded by the declared type.

A `Codec` is built once for each declared type and used for every value. It holds three promises:

- **What goes in comes back.** `roundtrip` returns the decoded record beside its bytes, and the runtime hands that one
  to the agent: what a replay will see is what the live run saw, in value and in type. A value that would lose
  something on the way is refused at once, with the path inside it, instead of surprising a replay.
- **Data, never code.** Nothing in a record names a class. The declared type alone decides what is built.
- **Without a declared type, JSON-shaped data**, bytes and the order of dicts included: None, bool, int within 64 bits,
  float (NaN too), str, bytes, list, dict. A tuple comes back as a list. Anything else needs a declaration.

With one: dataclasses, Structs, attrs, TypedDicts, NamedTuples, enums, dates, times (aware ones come back in UTC),
Decimal, UUID, sets, tuples, whatever unions msgspec can tell apart, and Pydantic models.

Checking must cost less than encoding. For builtins it is `marshal` (exact types) and `==`, for closed types a second
encoding to the same bytes, all in C; only where these differ does `paths.compare` walk and explain.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from perdure.core.declared import annotation_name, declared
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.paths import SCALARS, Found, a_type, compare, is_plain, locate, type_name
from perdure.errors import NotSerializable, PayloadTooLarge

_REFUSED: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What encoding raises for a value it cannot take; `UnicodeEncodeError` and msgspec's errors are among them."""

_ANNOTATE: Final = (
    "Declare its type (`-> Foo` or returns=Foo of a result, `name: Foo` of an argument), or give plain data."
)

_AWAIT: Final = "Put an `await` before the call that made it."


class Codec:
    """Encodes and decodes the values of one declared type; `Any` for none."""

    __slots__ = ("_closed", "_declared", "_decode", "_encode", "_undeclared")

    def __init__(self, annotation: Any = Any) -> None:
        """Raises `UsageError`, naming the remedy, for a type whose values cannot be recorded."""
        self._declared = declared(annotation)
        self._undeclared = self._declared.annotation is Any
        self._closed = self._declared.closed
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=self._declared.encode_hook).encode
        self._decode = self._declared.decode

    @property
    def annotation(self) -> Any:
        """The declared type; `Any` for none."""
        return self._declared.annotation

    def encode(self, value: Any) -> bytes:
        """The record of a value, certain to decode. Raises `NotSerializable` or `PayloadTooLarge`."""
        return self.roundtrip(value)[0]

    def roundtrip(self, value: Any) -> tuple[bytes, Any]:
        """The record of a value, and the value as it will come back from it."""
        try:
            data = self._encode(value)
        except _REFUSED as error:
            raise self._unencodable(value) from error
        if len(data) > PAYLOAD_BYTES_MAX:
            raise too_large(len(data), PAYLOAD_BYTES_MAX)
        back = self.decode(data)
        if self._closed:
            if type(back) is type(value) and self._encode(back) == data:
                return data, back
        elif is_plain(value) and back == value:
            return data, back
        self._refuse_loss(value, back)
        return data, back

    def decode(self, data: bytes) -> Any:
        """The value of a record. Raises `NotSerializable`, with `path`, if it is none of the declared type."""
        try:
            return self._decode(data)
        except _REFUSED as error:
            raise self._mismatch(error) from error

    def to_builtins(self, value: Any) -> Any:
        """A value as JSON-shaped data and bytes, certain to come back; what `from_builtins` reads."""
        try:
            data = msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=self._declared.encode_hook)
        except _REFUSED as error:
            raise self._unencodable(value) from error
        back = self.from_builtins(data)
        if self._closed:
            if type(back) is type(value) and msgspec.to_builtins(back, builtin_types=(bytes,)) == data:
                return data
        elif is_plain(value) and back == value:
            return data
        self._refuse_loss(value, back)
        return data

    def from_builtins(self, data: Any) -> Any:
        """The value behind some JSON-shaped data. Raises `NotSerializable`, with `path`, like `decode`."""
        try:
            return self._declared.from_builtins(data)
        except _REFUSED as error:
            raise self._mismatch(error) from error

    def _refuse_loss(self, value: Any, back: Any) -> None:
        found = compare(value, back, declared=not self._undeclared)
        if found is not None:
            raise self._refused(found)

    def _unencodable(self, value: Any) -> NotSerializable:
        return self._refused(locate(value, self._encode))

    def _refused(self, found: Found) -> NotSerializable:
        remedy = "Convert it first." if type(found.part) in SCALARS else _ANNOTATE
        if isinstance(found.part, Awaitable):
            remedy = _AWAIT
        message = f"{_shown(found.part)} cannot be recorded at {found.path}: {found.reason}. {remedy}"
        return NotSerializable(message, path=found.path, type=type_name(type(found.part)))

    def _mismatch(self, error: Exception) -> NotSerializable:
        text, _, path = str(error).partition(" - at `")
        path = path.rstrip("`") or "$"
        if isinstance(error, RecursionError):
            text = "it is nested too deeply"
        message = f"Not a value of the declared type {annotation_name(self.annotation)}, at {path}: {text}."
        return NotSerializable(f"{message} Give what is declared, or declare what is given.", path=path)


def codec_for(annotation: Any) -> Codec:
    """The codec of a declared type, built once where the annotation can be hashed (nearly always)."""
    try:
        hash(annotation)
    except TypeError:  # `Annotated[int, ["unhashable"]]`
        return Codec(annotation)
    return _cached(annotation)


@lru_cache(maxsize=4096, typed=True)
def _cached(annotation: Any) -> Codec:
    return Codec(annotation)


def encode(value: Any) -> bytes:
    """The record of a value of no declared type."""
    return UNDECLARED.encode(value)


def decode(data: bytes) -> Any:
    """The value of a record of no declared type."""
    return UNDECLARED.decode(data)


def too_large(size: int, limit: int) -> PayloadTooLarge:
    """The error for a record over the limit."""
    return PayloadTooLarge(
        f"The record has {size:,} bytes, the limit is {limit:,}. Keep it in an object store and record its address.",
        size=size,
        limit=limit,
    )


def _shown(part: object) -> str:
    """A refused part in a few printable characters."""
    if isinstance(part, int) and part.bit_length() > 64:
        return f"An int of {part.bit_length():,} bits"
    text = ascii(part) if type(part) in SCALARS else a_type(type(part)).replace("a", "A", 1)
    return text if len(text) <= 60 else text[:57] + "..."


UNDECLARED: Final = Codec()
