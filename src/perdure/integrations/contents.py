"""What passes between an adapter and its broker: bodies as JSON, keys as ids that every broker takes."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

import msgspec

from perdure.runtime.callables import shielded
from perdure.runtime.sinks import Incoming, Outgoing

VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What may stand in a header or an id as it is. The percent sign stands for the rest."""


def body(item: Outgoing) -> bytes:
    """A delivery's body."""
    return msgspec.json.encode(item.payload)


def decoded(content: bytes) -> Any:
    """A message's content: decoded if it is JSON, else text, else the bytes."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):  # it is none, or nests more deeply than can be read
        pass
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def incoming(make: Callable[[], Incoming], *, name: str, reject: Callable[[], Awaitable[None]]) -> Incoming:
    """What has come. One that nothing can be made of is given as such, to be rejected: it takes no other along."""
    try:
        with shielded():
            return make()
    except Exception as error:  # the edge of user code, and of what anybody may have sent
        return Incoming(id=name, data=None, reject=reject, unfit=error)


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
