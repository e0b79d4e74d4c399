"""Recorded bytes whose content lies in blobs: fetched when they are needed."""

from __future__ import annotations

from typing import Any

from perdure.core import snapshot
from perdure.core.snapshot import spilled
from perdure.errors import StoreError
from perdure.runtime.patience import insist
from perdure.store.protocol import Store


async def load_payload(store: Store, thread: int, payload: bytes) -> bytes:
    """A payload as it was recorded, whether inline or spilled into a blob."""
    digest = spilled(payload)
    if digest is None:
        return payload
    found = await _fetch(store, thread, [digest])
    if digest not in found:
        raise StoreError(f"blob {digest.hex()} of thread {thread} is missing; restore it from a backup of the store")
    return found[digest]


async def load_state(store: Store, thread: int, root: bytes) -> tuple[Any, frozenset[bytes]]:
    """A state from its root: plain data, and the digests of every blob it uses."""
    have = await load_blobs(store, thread, root)
    return snapshot.thaw(root, have), frozenset(have)


async def load_blobs(store: Store, thread: int, root: bytes) -> dict[bytes, bytes]:
    """Every blob that a state uses, by digest. One read a level of the tree."""
    have: dict[bytes, bytes] = {}
    while wanted := snapshot.missing(root, have):
        found = await _fetch(store, thread, sorted(wanted))
        if absent := wanted - found.keys():
            raise StoreError(
                f"{len(absent)} blobs of thread {thread} are missing, {min(absent).hex()} the first; "
                "restore them from a backup of the store"
            )
        have |= found
    return have


async def _fetch(store: Store, thread: int, digests: list[bytes]) -> dict[bytes, bytes]:
    """Blobs, however long the store takes to come back: agent code must not see it go."""
    found: dict[bytes, bytes] = {}

    async def attempt() -> None:
        found.update(await store.blobs(thread, digests))

    await insist("blobs", attempt)
    return found
