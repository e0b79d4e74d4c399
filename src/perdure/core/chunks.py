"""Where a long list is cut, so that most chunks survive when it changes.

A chunk ends after an element whose checksum says so; the longer the element, the likelier. Its position does not
enter, so after an insertion or a removal the borders soon fall where they fell before, and all chunks from there on
are the same as they were. The elements after the last border are the tail: the only part that an append changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

CHUNK_BYTES_MIN: Final = 128
"""A chunk has a digest and a row of its own; below this it would cost more than it saves."""

CHUNK_BYTES_SPREAD: Final = 192
"""Past the minimum, a border is expected after that many bytes more: chunks have about 320 bytes, and about 14
references. Measured with 1 KB appended 1,000 times: smaller means more rows, larger a longer tail in every root."""

CHUNK_BYTES_MAX: Final = 1024
"""A border is set here at the latest, so that a run of equal elements cannot become one endless chunk."""


def cut(parts: Sequence[bytes]) -> list[int]:
    """The borders in a list of encoded elements: for each chunk the index after its last element. What follows the
    last border is the tail; without any border, everything is."""
    borders: list[int] = []
    size = 0
    for index, part in enumerate(parts, start=1):
        size += len(part)
        if size < CHUNK_BYTES_MIN:
            continue
        if size >= CHUNK_BYTES_MAX or crc32(part) % CHUNK_BYTES_SPREAD < len(part):
            borders.append(index)
            size = 0
    return borders
