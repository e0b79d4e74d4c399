"""What does not load any more, by its name, and what to do about it. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from perdure.core.signature import Signature
from perdure.errors import NotSerializable, UsageError

_Raw = tuple[list[msgspec.Raw], dict[str, msgspec.Raw]]
_decode: Final = msgspec.msgpack.Decoder(_Raw).decode
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

OLD_CODE: Final = "or deploy under another version, so that old runs stay on the code that began them (docs/how-to.md)"

STATE: Final = f"Give new fields of the state a default and let changed ones take what is recorded, too; {OLD_CODE}."
RECORD: Final = f"Declare what is recorded, or give the step another name; {OLD_CODE}."
BLOBS: Final = "Export the run again."


def misfit(signature: Signature, arguments: bytes) -> tuple[str, str]:
    """The parameter that recorded arguments do not fit, and a remedy."""
    try:
        positional, named = _decode(arguments)
    except (msgspec.DecodeError, ValueError):
        return "arguments", BLOBS
    given = {**dict(zip(_positional(signature), positional, strict=False)), **named}
    for name, raw in given.items():
        if name not in signature.params:
            return f"parameter {name!r}", f"Keep parameter {name!r}, with a default for new runs; {OLD_CODE}."
        if not _loads(signature, name, raw):
            return f"parameter {name!r}", f"Let parameter {name!r} take what is recorded, too; {OLD_CODE}."
    for name, parameter in signature.params.items():
        if parameter.default is parameter.empty and parameter.kind not in _VARIADIC and name not in given:
            return f"parameter {name!r}", f"Give parameter {name!r} a default; {OLD_CODE}."
    return "arguments", f"Let the agent take as many arguments as are recorded; {OLD_CODE}."


def _positional(signature: Signature) -> Iterator[str]:
    return (name for name, parameter in signature.params.items() if parameter.kind in _POSITIONAL)


def _loads(signature: Signature, name: str, raw: Any) -> bool:
    try:
        signature.codec(name).decode(bytes(raw))
    except (NotSerializable, UsageError, TypeError, ValueError):
        return False
    return True
