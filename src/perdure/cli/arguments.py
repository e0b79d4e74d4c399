"""A run's arguments as the command line gives them: JSON, turned into what the agent declares."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any, Final

from perdure.core.answers import unknown_fields
from perdure.core.signature import Signature
from perdure.errors import NotSerializable, UsageError

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parse_args(text: str) -> list[Any]:
    """`--args`: a JSON array."""
    value = _parse("--args", text)
    if not isinstance(value, list):
        raise UsageError(f"--args takes a JSON array, one item an argument: --args '[{json.dumps(value)}]'")
    return value


def parse_kwargs(text: str) -> dict[str, Any]:
    """`--kwargs`: a JSON object."""
    value = _parse("--kwargs", text)
    if not isinstance(value, dict):
        raise UsageError("--kwargs takes a JSON object, such as --kwargs '{\"limit\": 3}'")
    return value


def _parse(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is not JSON: {error}; quote it for the shell: {option} '…'") from None


def typed(signature: Signature, args: list[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The values as the agent's parameters declare them. What fits no parameter stays; the start will refuse it."""
    params = signature.params.values()
    names = [param.name for param in params if param.kind in _POSITIONAL]
    rest = next((param.name for param in params if param.kind is param.VAR_POSITIONAL), None)
    others = next((param.name for param in params if param.kind is param.VAR_KEYWORD), None)
    named = {param.name for param in params} - {rest, others}
    return (
        [_typed(signature, names[n] if n < len(names) else rest, value) for n, value in enumerate(args)],
        {name: _typed(signature, name if name in named else others, value) for name, value in kwargs.items()},
    )


def _typed(signature: Signature, param: str | None, value: Any) -> Any:
    if param is None:
        return value
    codec = signature.codec(param)
    try:
        made = codec.from_builtins(value)
    except NotSerializable as error:
        raise UsageError(f"argument {param!r} of {signature.text}: {error}", param=param) from error
    if (strange := unknown_fields(codec.annotation, value)) is not None:
        raise UsageError(f"argument {param!r} of {signature.text}: {strange}", param=param)
    return made
