"""Payloads that are too large for their checkpoint's row: one blob, and a reference in its place.

The reference is the byte 0xc1, which msgpack never uses, and the blob's digest; so no payload can be mistaken for one.
"""

from __future__ import annotations

from typing import Final

from perdure.core.digests import DIGEST_BYTES, digest
from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import Blob

SPILLED: Final = b"\xc1"


def spill(payload: bytes) -> tuple[bytes, tuple[Blob, ...]]:
    """The payload itself if it may lie inline, else a reference and the blob it refers to."""
    if len(payload) <= INLINE_BYTES_MAX:
        return payload, ()
    blob = Blob(digest(payload), payload)
    return SPILLED + blob.digest, (blob,)


def spilled(payload: bytes) -> bytes | None:
    """The digest of the blob that holds the payload; None if it lies inline."""
    if payload[:1] != SPILLED:
        return None
    assert len(payload) == 1 + DIGEST_BYTES, len(payload)
    return payload[1:]
