"""Snapshots: a state comes back exactly, and each one stores only what is new."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import INLINE_BYTES_MAX
from perdure.core.records import Blob
from perdure.core.snapshot import (
    Frozen,
    freeze,
    missing,
    spill,
    spilled,
    state_from_builtins,
    state_to_builtins,
    thaw,
    unspill,
)
from perdure.errors import NotSerializable

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
BIG = st.builds(lambda seed, size: text(size, seed), st.integers(0, 9), st.integers(200, 3000))
SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | TEXT | BIG | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(TEXT | st.integers(0, 99), inner, max_size=20),
    max_leaves=12,
)
MANY = st.builds(
    lambda parts, count: [part for n in range(count) for part in (n, *parts)],
    st.lists(SMALL, max_size=5),
    st.integers(0, 99),
)
WIDE = st.builds(lambda parts: {f"key {n}": part for n, part in enumerate(parts)}, MANY)
STATES = SMALL | MANY | WIDE | st.lists(MANY | WIDE, max_size=3)


def text(size: int, seed: object) -> str:
    return "".join(random.Random(str(seed)).choices(string.ascii_letters, k=size))


class Shelf:
    """A store of blobs that counts what it is given."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.known: frozenset[bytes] = frozenset()
        self.bytes_written = 0

    def save(self, state: Any) -> Frozen:
        frozen = freeze(state, self.known)
        assert not self.known.intersection(blob.digest for blob in frozen.blobs)
        self.put(frozen.blobs)
        self.known = frozen.refs
        self.bytes_written += len(frozen.root) + sum(len(blob.data) for blob in frozen.blobs)
        return frozen

    def put(self, blobs: Iterable[Blob]) -> None:
        self.blobs.update((blob.digest, blob.data) for blob in blobs)

    def load(self, root: bytes) -> tuple[Any, int]:
        """The state, and how many reads it took; only what was asked for is given to `thaw`."""
        have: dict[bytes, bytes] = {}
        reads = 0
        while wanted := missing(root, have):
            have |= {name: self.blobs[name] for name in wanted}
            reads += 1
        return thaw(root, have), reads


def written(before: Any, after: Any) -> int:
    """Bytes that the second of two snapshots stores."""
    shelf = Shelf()
    shelf.save(before)
    first = shelf.bytes_written
    shelf.save(after)
    return shelf.bytes_written - first


def messages(count: int, size: int = 1000) -> list[Any]:
    return [{"role": "user", "content": text(size, n)} for n in range(count)]


def ordered(value: Any) -> Any:
    """A value in which the order of dicts counts."""
    if isinstance(value, dict):
        return ["dict", *((key, ordered(part)) for key, part in value.items())]
    return [ordered(part) for part in value] if isinstance(value, list) else value


@given(STATES)
def test_a_state_comes_back_exactly_in_the_order_of_its_dicts(state: Any) -> None:
    shelf = Shelf()
    frozen = shelf.save(state)

    back, _ = shelf.load(frozen.root)

    assert ordered(back) == ordered(state)
    assert {blob.digest for blob in frozen.blobs} == frozen.refs
    assert freeze(state) == frozen


@given(STATES, STATES)
def test_what_is_known_is_not_written_again(one: Any, other: Any) -> None:
    shelf = Shelf()
    shelf.save({"a": one, "b": other})

    both = shelf.save({"a": one, "b": other})
    moved = shelf.save({"b": other, "c": one})

    assert both.blobs == ()
    assert ordered(shelf.load(moved.root)[0]) == ordered({"b": other, "c": one})


def test_a_small_state_is_one_root() -> None:
    frozen = freeze({"step": 3, "names": ["a", "b"], "cart": {"tea": 2}})

    assert (frozen.blobs, frozen.refs) == ((), frozenset())
    assert len(frozen.root) < 40


def test_appending_a_kilobyte_a_thousand_times_costs_little_more_than_the_kilobytes() -> None:
    shelf = Shelf()
    state: dict[str, Any] = {"goal": "grow", "log": []}
    for n in range(1000):
        state["log"].append(text(1024, n))
        frozen = shelf.save(state)

    back, reads = shelf.load(frozen.root)

    assert shelf.bytes_written <= 1_400_000
    assert reads <= 6
    assert back == state


@pytest.mark.parametrize("size", [1, 10, 40, 100, 250, 1000, 5000])
def test_appending_costs_about_the_item_whatever_its_size(size: int) -> None:
    base = messages(600, size)

    costs = [written({"log": base[:count]}, {"log": base[: count + 1]}) for count in range(500, 600, 4)]

    assert sum(costs) / len(costs) <= size + 700


@pytest.mark.parametrize("size", [10, 100, 1000])
def test_dropping_from_the_front_and_inserting_keep_most_chunks(size: int) -> None:
    base = messages(1000, size)
    whole = written({}, {"log": base})

    dropped = written({"log": base}, {"log": base[37:]})
    inserted = written({"log": base}, {"log": [*base[:500], {"new": 1}, *base[500:]]})

    assert dropped <= whole * 0.15 + 3000
    assert inserted <= whole * 0.15 + 3000


def test_changing_one_value_of_a_large_dict_writes_that_value_and_a_few_nodes() -> None:
    base = {f"key {n}": text(50, n) for n in range(3000)}

    assert written(base, base | {"key 1500": "changed"}) <= 5000
    assert list(Shelf().load(freeze({"b": 1, "a": 2}).root)[0]) == ["b", "a"]


def test_equal_parts_are_stored_once() -> None:
    part = {"text": text(1000, 1)}

    frozen = freeze({"a": part, "b": [part, part], "c": part})

    assert len(frozen.blobs) == 1


def test_a_missing_blob_is_named_level_by_level() -> None:
    frozen = freeze({"log": messages(300)})
    blobs = {blob.digest: blob.data for blob in frozen.blobs}

    first = missing(frozen.root, {})

    assert first
    assert first < frozen.refs
    assert missing(frozen.root, blobs) == set()
    with pytest.raises(KeyError):
        thaw(frozen.root, {name: blobs[name] for name in first})


def test_what_cannot_be_stored_is_refused_with_its_path() -> None:
    with pytest.raises(NotSerializable) as caught:
        freeze({"log": [*messages(300), {"content": "\ud800"}]})

    assert caught.value.path == "$.log[300].content"


# -- payloads ------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=100) | st.integers(INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX + 2).map(lambda n: b"\x90" * n))
def test_a_long_payload_lies_in_one_blob(payload: bytes) -> None:
    if payload[:1] == b"\xc1":
        return  # msgpack never begins so

    row, blobs = spill(payload)

    assert len(row) <= INLINE_BYTES_MAX
    assert (spilled(row) is None) == (len(payload) <= INLINE_BYTES_MAX)
    assert unspill(row, {blob.digest: blob.data for blob in blobs}) == payload
    assert spill(row) == (row, ())


# -- typed states --------------------------------------------------------------------------------------------------


@dataclass
class Message:
    text: str


@dataclass
class Chat:
    log: list[Message] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    raw: bytes = b""


def test_a_typed_state_goes_through_a_snapshot() -> None:
    shelf = Shelf()
    state = Chat([Message(text(500, n)) for n in range(50)], {"a", "b"}, b"\0" * 400)

    root = shelf.save(state_to_builtins(state, Chat)).root

    assert state_from_builtins(shelf.load(root)[0], Chat) == state


def test_a_state_of_another_shape_is_refused_with_its_path() -> None:
    data = state_to_builtins(Chat([Message("a")]), Chat)
    data["log"][0]["text"] = 7

    with pytest.raises(NotSerializable) as caught:
        state_from_builtins(data, Chat)

    assert caught.value.path == "$.log[0].text"
