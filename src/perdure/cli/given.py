"""Values as people give them to a command: JSON on the command line, in a file, or on stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from perdure.errors import UsageError

STDIN: Final = "-"

_STARTS: Final = ("{", "[", '"')
"""What begins like this was meant to be JSON."""


def given_text(what: str, value: str | None, file: str | None) -> str:
    """The text of an argument that may be on the command line, in `--file`, or on stdin; exactly one of them."""
    if (value is None) == (file is None):
        both = "both are given" if value is not None else "neither is given"
        raise UsageError(f"give {what}, or --file with the name of a file that holds it ({STDIN} is stdin); {both}")
    source = file if value is None else value
    assert source is not None
    if source == STDIN:
        return _without_newline(_decoded(sys.stdin.buffer.read(), "stdin"))
    return _without_newline(read_file(source)) if value is None else source


def text_or_file(option: str, value: str) -> str:
    """The text of an option whose value may be `@` and the name of a file."""
    return read_file(value[1:], option) if value.startswith("@") else value


def read_file(path: str, option: str = "--file") -> str:
    """What a file holds, as UTF-8 text."""
    try:
        return _decoded(Path(path).read_bytes(), path)
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def parse_json(what: str, text: str) -> Any:
    """A value in JSON."""
    try:
        return loads(text)
    except ValueError as error:
        raise UsageError(f"{what} is not JSON: {error}; quote it for the shell: '…'") from None


def parse_json_or_word(what: str, text: str) -> tuple[Any, bool]:
    """A value in JSON, else the text as it is; and whether it is that. What begins like JSON must be JSON."""
    try:
        return loads(text), False
    except ValueError as error:
        if not text.strip() or text.lstrip().startswith(_STARTS):
            raise UsageError(f"{what} is not JSON: {error}; quote it for the shell: '…'") from None
        return text, True


def loads(text: str) -> Any:
    """JSON, without the numbers that it does not have. Raises `ValueError`."""
    return json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
