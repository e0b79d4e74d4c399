"""Display: any record becomes JSON, whatever is in it."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.codec import Codec, encode
from perdure.core.display import render, to_jsonable

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()) | st.integers() | st.none(), inner),
    max_leaves=15,
)


@given(VALUES)
def test_any_value_becomes_json(value: Any) -> None:
    json.dumps(to_jsonable(value), allow_nan=False).encode()


@given(st.binary())
def test_any_bytes_can_be_shown(data: bytes) -> None:
    json.dumps(render(data), allow_nan=False).encode()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        (b"hi", {"$bytes": "aGk="}),
        ([math.nan, -math.inf], ["nan", "-inf"]),
        ({1: {None: 2}}, {"1": {"None": 2}}),
    ],
)
def test_what_json_cannot_say_is_spelled(value: Any, shown: Any) -> None:
    assert render(encode(value)) == shown


def test_a_typed_record_is_shown_without_its_type() -> None:
    record = Codec(dict[str, datetime]).encode({"at": datetime(2026, 1, 1, tzinfo=UTC)})

    assert render(record) == {"at": "2026-01-01T00:00:00+00:00"}


def test_a_reference_to_a_blob_is_shown_as_one() -> None:
    assert render(b"\xc1" + b"\xab" * 20) == {"$blob": "ab" * 20}


def test_a_large_value_is_cut() -> None:
    value = {"log": [{"text": "x" * 100} for _ in range(1000)], "blob": b"y" * 10_000}

    shown = render(encode(value), limit=2000)

    assert len(json.dumps(shown)) < 5000
    assert "more" in json.dumps(shown)
