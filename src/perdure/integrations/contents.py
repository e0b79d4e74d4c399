"""What passes between an adapter and its broker: bodies as JSON, keys as ids that every broker takes."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from urllib.parse import quote

import msgspec

from perdure.runtime.sinks import Outgoing

VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What may stand in a header or an id as it is. The percent sign stands for the rest."""


def body(item: Outgoing) -> bytes:
    """A delivery's body."""
    return msgspec.json.encode(item.payload)


def decoded(content: bytes) -> Any:
    """A message's content: decoded if it is JSON, else text, else the bytes."""
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def visible(text: str) -> str:
    """The text if it is of visible ASCII characters only; others are written as in a URL. No two texts become one."""
    return quote(text, safe=VISIBLE, errors="surrogatepass")


def bounded(text: str, *, chars: int) -> str:
    """`visible`, where a broker takes so many characters; a longer one ends in the digest of the whole."""
    written = visible(text)
    if len(written) <= chars:
        return written
    digest = hashlib.sha256(written.encode()).hexdigest()
    return f"{written[: chars - len(digest) - 1]}~{digest}"
