"""A thread's state as a tree of content-addressed blobs, so that a snapshot stores only what is new.

`freeze` takes a state as builtins and cuts it into **nodes**, which are msgpack. A large part of a node is replaced by
a reference to a blob, named by the digest of its bytes; what has not changed since the last snapshot has the same
digest and is not stored again. The **root** is the one node that is stored inline, with its checkpoint.

- A value whose encoding has fewer than `BLOB_BYTES_MIN` bytes stays where it is. A small state is one root, no blobs.
- A larger text, or dict that is not yet worth splitting, becomes one blob.
- A dict from `SPLIT_BYTES_MIN` on, and the state itself, is split by its values, each treated by these same rules.
- A long list is cut into chunks whose borders depend on the content of the elements near them, not on their
  positions: see `chunks`. So appending, inserting and dropping change the chunks they touch, and no others.
- A dict of very many keys is cut the same way, as a list of its pairs; so the order of its keys survives.

The references are msgpack extensions. User data never holds any, because a state is builtins here. `LEAF` and `NODE`
both mean "that blob"; only a `NODE` may hold further references, so that looking for missing blobs need not read what
is only content. Content-defined chunks are from LBFS (Muthitacharoen and others, 2001); trees of them, from Noms.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from perdure.core.chunks import cut
from perdure.core.codec import codec_for, too_large
from perdure.core.digests import DIGEST_BYTES, digest
from perdure.core.limits import INLINE_BYTES_MAX, PAYLOAD_BYTES_MAX
from perdure.core.paths import locate
from perdure.core.records import Blob
from perdure.errors import NotSerializable

BLOB_BYTES_MIN: Final = 256
"""A reference costs 22 bytes and a row; below this size content is cheaper to repeat than to refer to."""

SPLIT_BYTES_MIN: Final = 2048
"""A nested dict up to here is written whole when one of its values changes."""

LEAF: Final = 1
"""Extension: the digest of a blob without references."""
NODE: Final = 2
"""Extension: the digest of a blob that may hold references."""
LIST: Final = 3
"""Extension: a list in chunks. Its data are a node `[spine, tail]`; see `_Freezer.chunked`."""
PAIRS: Final = 4
"""Extension: the same for a dict, as a list of dicts of one pair."""

SPINE_BYTES_MIN: Final = 64
"""A list's spine changes once for every chunk that fills, the root at every super-step: so it soon moves out."""

PAIRS_BYTES_MIN: Final = 1024
"""A dict whose node would be larger than this is cut into chunks."""

SPILLED: Final = b"\xc1"
"""The byte that msgpack never uses: before a digest, it says that the payload is that blob."""

_encode: Final[Callable[[Any], bytes]] = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_Ext: Final = msgspec.msgpack.Ext
_REF_HEAD: Final = {code: _encode(_Ext(code, bytes(DIGEST_BYTES)))[:-DIGEST_BYTES] for code in (LEAF, NODE)}

Part = tuple[bytes, bool]
"""An encoded value as it stands in a node, and whether it holds references."""


class Frozen(msgspec.Struct, frozen=True):
    """A snapshot."""

    root: bytes
    blobs: tuple[Blob, ...]
    """What it needs and was not known."""
    refs: frozenset[bytes]
    """The digests of all it needs."""


def freeze(data: Any, known: Container[bytes] = frozenset()) -> Frozen:
    """The snapshot of a state given as builtins; `known` are the digests that are stored already.

    Raises `NotSerializable`, with a path, for what msgpack cannot hold.
    """
    freezer = _Freezer()
    try:
        root = freezer.root(data)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        found = locate(data, _encode)
        message = f"The state cannot be recorded at {found.path}: {found.reason}."
        raise NotSerializable(message, path=found.path) from error
    if len(root) > PAYLOAD_BYTES_MAX:
        raise too_large(len(root), PAYLOAD_BYTES_MAX)
    blobs = freezer.blobs
    new = tuple(Blob(name, content) for name, content in blobs.items() if name not in known)
    return Frozen(root, new, frozenset(blobs))


def thaw(root: bytes, blobs: Mapping[bytes, bytes]) -> Any:
    """The state behind a root. `blobs` must hold all that `missing` asked for; a `KeyError` names one that it lacks."""

    def resolve(code: int, data: memoryview) -> Any:
        if code in (LEAF, NODE):
            return decode(blobs[bytes(data)])
        items = _joined(*decode(data))
        return items if code == LIST else {key: part for pair in items for key, part in pair.items()}

    decode = msgspec.msgpack.Decoder(ext_hook=resolve).decode
    return decode(root)


def missing(root: bytes, blobs: Mapping[bytes, bytes]) -> set[bytes]:
    """The digests to fetch next: those that the root and the given blobs refer to and that are not among them.

    Called again with what was fetched, until it is empty. References that only a missing blob holds come later.
    """
    wanted: set[bytes] = set()
    seen: set[bytes] = set()
    todo: list[bytes | memoryview] = [root]

    def note(code: int, data: memoryview) -> None:
        if code not in (LEAF, NODE):
            todo.append(data)
        elif (name := bytes(data)) not in blobs:
            wanted.add(name)
        elif code == NODE and name not in seen:
            seen.add(name)
            todo.append(blobs[name])

    decode = msgspec.msgpack.Decoder(ext_hook=note).decode
    while todo:
        decode(todo.pop())
    return wanted


def spill(payload: bytes) -> tuple[bytes, tuple[Blob, ...]]:
    """A payload as its row keeps it: itself, or if it is long a reference, and the blob behind that."""
    if len(payload) <= INLINE_BYTES_MAX:
        return payload, ()
    name = digest(payload)
    return SPILLED + name, (Blob(name, payload),)


def spilled(payload: bytes) -> bytes | None:
    """The digest of the blob that a payload refers to; None if it stands for itself."""
    return payload[1:] if payload[:1] == SPILLED else None


def unspill(payload: bytes, blobs: Mapping[bytes, bytes]) -> bytes:
    """A payload as it was before `spill`."""
    name = spilled(payload)
    return payload if name is None else blobs[name]


def state_to_builtins(state: Any, annotation: Any) -> Any:
    """A state of the declared type as builtins for `freeze`. Raises `NotSerializable`, with a path, if something in it
    would not come back."""
    return codec_for(annotation).to_builtins(state)


def state_from_builtins(data: Any, annotation: Any) -> Any:
    """A state of the declared type from what `thaw` returned. Raises `NotSerializable`, with a path, if it is none."""
    return codec_for(annotation).from_builtins(data)


class _Freezer:
    """Builds nodes from the top down, and collects the blobs they need."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}

    def root(self, value: Any) -> bytes:
        """The root node: split whatever its size, because all that it holds is written again each time."""
        if isinstance(value, dict):
            return self._dict(value)[0]
        if isinstance(value, list | tuple):
            return self._list(value)[0]
        return self._part(value)[0]

    def _part(self, value: Any) -> Part:
        """A value inside a node: itself or a reference."""
        if isinstance(value, list | tuple) and len(value) >= BLOB_BYTES_MIN:
            return self._placed(self._list(value))  # each element takes a byte at least: no need to encode it to see
        data = _encode(value)
        return (data, False) if len(data) < BLOB_BYTES_MIN else self._large(value, data)

    def _large(self, value: Any, data: bytes) -> Part:
        if isinstance(value, list | tuple):
            return self._placed(self._list(value))
        if isinstance(value, dict) and len(data) >= SPLIT_BYTES_MIN:
            return self._placed(self._dict(value))
        return self._blob(data, LEAF), True

    def _placed(self, node: Part) -> Part:
        """A node inside another: where it is, or as a blob of its own."""
        data, holds = node
        return node if len(data) < BLOB_BYTES_MIN else (self._blob(data, NODE if holds else LEAF), True)

    def _list(self, values: list[Any] | tuple[Any, ...]) -> Part:
        parts = [self._part(value) for value in values]
        return self._chunked(parts, LIST) or (_array([data for data, _ in parts]), _any(parts))

    def _dict(self, values: dict[Any, Any]) -> Part:
        parts = [(_encode(key), *self._part(value)) for key, value in values.items()]
        if sum(len(key) + len(data) for key, data, _ in parts) >= PAIRS_BYTES_MIN:
            chunked = self._chunked([(b"\x81" + key + data, holds) for key, data, holds in parts], PAIRS)
            if chunked is not None:
                return chunked
        return _map([key + data for key, data, _ in parts]), any(holds for _, _, holds in parts)

    def _chunked(self, parts: list[Part], code: int) -> Part | None:
        """A long list as an extension of `[spine, tail]`; None if it is too short to be cut.

        The tail is the elements after the last chunk. The spine is what leads to the chunks: the references to them
        are a list themselves, which is cut again, and so on up; it holds the tail of each of these lists, the
        lowest first. An append rewrites the tail, and the spine once for each chunk that fills.
        """
        borders = cut([data for data, _ in parts])
        if not borders:
            return None
        refs = [
            self._blob(_array([data for data, _ in chunk]), NODE if _any(chunk) else LEAF)
            for chunk in (parts[start:end] for start, end in pairwise((0, *borders)))
        ]
        tails: list[bytes] = []
        while ends := cut(refs):
            tails.append(_array(refs[ends[-1] :]))
            refs = [self._blob(_array(refs[start:end]), NODE) for start, end in pairwise((0, *ends))]
        spine = _array([*tails, _array(refs)])
        if len(spine) >= SPINE_BYTES_MIN:
            spine = self._blob(spine, NODE)
        tail = _array([data for data, _ in parts[borders[-1] :]])
        return _encode(_Ext(code, _array([spine, tail]))), True

    def _blob(self, data: bytes, code: int) -> bytes:
        """Put a node into a blob; returns the reference to it."""
        name = digest(data)
        self.blobs[name] = data
        return _REF_HEAD[code] + name


def _joined(spine: list[list[Any]], tail: list[Any]) -> list[Any]:
    """The elements of a chunked list, from the top of the spine down to the tail. Decoding has put chunks in the place
    of references, so the n-th tail of the spine holds lists nested n deep."""
    items: list[Any] = []
    for depth in range(len(spine), 0, -1):
        level = spine[depth - 1]
        for _ in range(depth):
            level = [part for chunk in level for part in chunk]
        items += level
    return items + tail


def _any(parts: list[Part]) -> bool:
    return any(holds for _, holds in parts)


def _array(parts: list[bytes]) -> bytes:
    """A msgpack array of encoded parts."""
    count = len(parts)
    if count < 16:
        head = bytes((0x90 | count,))
    else:
        head = b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
    return b"".join((head, *parts))


def _map(pairs: list[bytes]) -> bytes:
    """A msgpack map of encoded keys, each with its value behind it."""
    count = len(pairs)
    if count < 16:
        head = bytes((0x80 | count,))
    else:
        head = b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")
    return b"".join((head, *pairs))
