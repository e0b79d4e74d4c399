"""Times as people give them to a command."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from perdure.cli.amounts import deadline
from perdure.errors import UsageError


@pytest.mark.parametrize(
    "text", ["2026-01-01", "2026-01-01+01:00", "2026-1-1T09:00", "2026-13-01T09:00Z", "yesterday", ""]
)
def test_what_is_no_deadline_is_refused_with_one_that_would_do(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        deadline(text)

    (told,) = re.findall(r"20[0-9T:+-]+\+01:00(?![^ ]*')", str(refused.value))
    assert isinstance(deadline(told), datetime)


@pytest.mark.parametrize("text", ["2026-01-01T09:00", "2026-01-01 09:00:30.5"])
def test_a_time_without_an_offset_is_refused_and_taken_as_it_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="does not say in which time zone") as refused:
        deadline(text)

    told = str(refused.value).partition("give its offset too: ")[2].removesuffix("+01:00")
    utc, _, other = told.partition(", say, in UTC, or ")
    assert deadline(utc) == datetime.fromisoformat(f"{text}+00:00")
    assert deadline(f"{other}+01:00") == datetime.fromisoformat(f"{text}+01:00")
