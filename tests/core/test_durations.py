"""Durations: what people write, in seconds, or a typed refusal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.durations import seconds
from perdure.core.shown import shown
from perdure.errors import UsageError
from tests.support.ids import plainly


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("1.5h", 5400.0), ("2d", 172_800.0), ("1h30m", 5400.0),
        ("1h 30m", 5400.0), ("500ms", 0.5), ("2w", 1_209_600.0), (timedelta(seconds=1), 1.0),
        (timedelta(days=2), 172_800.0), (" 3m ", 180.0),
    ],
)  # fmt: skip
def test_a_duration_is_a_number_of_seconds(value: Any, expected: float) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(
    "value",
    [-1, -0.5, float("nan"), float("inf"), 1e300, 10**400, True, None, "", " ", "90", "h", "-1h", "1 h", "1h1h", "1e3s",
     "h30", "1h30", "٣s", "nans", timedelta(days=-1), timedelta.max, [1], b"1s", "9" * 50 + "s"],
    ids=plainly,
)  # fmt: skip
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        seconds(value)


@given(st.text())
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        assert seconds(text) >= 0
    except UsageError as error:
        assert shown(text) in str(error)
