"""Absolute times: what people write, as moments, across the changes of the clocks."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.times import due_us
from perdure.errors import UsageError

ZONES = (
    "Europe/Berlin", "Europe/Paris", "America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu",
    "Africa/Casablanca", "Pacific/Apia", "Europe/Dublin", "UTC",
)  # fmt: skip

moments = st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1))
zones = st.sampled_from(ZONES)


def us(moment: datetime) -> int:
    """An aware time as microseconds, by way of UTC."""
    return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("when", "tz", "expected"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), None, 0),
        (datetime(2026, 12, 1, 9, tzinfo=timezone(timedelta(hours=1))), None, us(datetime(2026, 12, 1, 8, tzinfo=UTC))),
        ("2026-12-01T09:00+01:00", None, us(datetime(2026, 12, 1, 8, tzinfo=UTC))),
        ("2026-12-01T08:00:00.000001Z", None, us(datetime(2026, 12, 1, 8, tzinfo=UTC)) + 1),
        ("2026-12-01T09:00+01:00", "America/New_York", us(datetime(2026, 12, 1, 8, tzinfo=UTC))),
        ("2026-12-01 09:00", "Europe/Berlin", us(datetime(2026, 12, 1, 8, tzinfo=UTC))),
        (datetime(2026, 7, 1, 9), "Europe/Berlin", us(datetime(2026, 7, 1, 7, tzinfo=UTC))),
        ("2026-12-01", "Europe/Berlin", us(datetime(2026, 11, 30, 23, tzinfo=UTC))),
    ],
)
def test_a_time_is_a_moment(when: Any, tz: str | None, expected: int) -> None:
    assert due_us(when, tz=tz) == expected


@pytest.mark.parametrize("local", [datetime(2026, 12, 1, 9), "2026-12-01T09:00", "2026-12-01"])
def test_a_local_time_without_a_zone_is_refused_with_the_remedy(local: Any) -> None:
    with pytest.raises(UsageError, match=r"tz='Europe/Berlin'"):
        due_us(local)


@pytest.mark.parametrize(
    "no_time", [None, 5, 5.0, "tomorrow", "", "2026-13-01T00:00Z", date(2026, 1, 1), time(9), b"x"]
)
def test_what_is_no_time_is_refused(no_time: Any) -> None:
    with pytest.raises(UsageError, match="is not a time"):
        due_us(no_time, tz="UTC")


@pytest.mark.parametrize("name", ["Europe/Atlantis", "", "../etc/passwd", "Europe", "\ud800", "x" * 5000, 5])
def test_a_zone_that_is_none_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="time zone"):
        due_us("2026-12-01T09:00", tz=name)


@pytest.mark.parametrize("minute", [0, 1, 30, 59])
@pytest.mark.parametrize("fold", [0, 1])
def test_a_local_time_that_the_clocks_leave_out_means_the_first_moment_after_the_gap(minute: int, fold: int) -> None:
    left_out = datetime(2026, 3, 29, 2, minute, 7, 5, fold=fold)
    assert due_us(left_out, tz="Europe/Berlin") == us(datetime(2026, 3, 29, 1, tzinfo=UTC))
    assert due_us(left_out.replace(tzinfo=ZoneInfo("Europe/Berlin"))) == us(datetime(2026, 3, 29, 1, tzinfo=UTC))


def test_a_day_that_a_zone_leaves_out_is_a_gap_like_any_other() -> None:
    """Samoa had no 30 December 2011."""
    assert due_us("2011-12-30T12:00", tz="Pacific/Apia") == us(datetime(2011, 12, 30, 10, tzinfo=UTC))


def test_a_local_time_that_comes_twice_means_the_first_unless_fold_says_the_second() -> None:
    twice = datetime(2026, 10, 25, 2, 30)
    assert due_us(twice, tz="Europe/Berlin") == us(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert due_us("2026-10-25T02:30", tz="Europe/Berlin") == us(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert due_us(twice.replace(fold=1), tz="Europe/Berlin") == us(datetime(2026, 10, 25, 1, 30, tzinfo=UTC))


@given(moments, zones)
def test_every_moment_comes_back_from_its_local_time(moment: datetime, zone: str) -> None:
    local = moment.replace(tzinfo=UTC).astimezone(ZoneInfo(zone))
    expected = us(moment.replace(tzinfo=UTC))
    assert due_us(local) == expected
    assert due_us(local.isoformat()) == expected
    assert due_us(local.replace(tzinfo=None), tz=zone) == expected


@given(moments, zones)
def test_a_local_time_means_one_of_its_own_moments_or_the_end_of_the_gap_it_is_in(wall: datetime, zone: str) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=due_us(wall, tz=zone))
    back = at.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    before = (at - timedelta(seconds=1)).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert back == wall or before < wall < back


@given(moments, st.timedeltas(timedelta(0), timedelta(days=400)), zones)
def test_a_later_local_time_is_never_an_earlier_moment_except_where_the_clocks_went_back(
    wall: datetime, later: timedelta, zone: str
) -> None:
    first, second = (due_us(local, tz=zone) for local in (wall, wall + later))
    went_back = timedelta(days=1) // timedelta(microseconds=1)
    assert second >= first - went_back
    if later > timedelta(days=1):
        assert second > first


@given(st.text())
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        assert isinstance(due_us(text, tz="UTC"), int)
    except UsageError as error:
        assert repr(text) in str(error)


@pytest.mark.parametrize("extreme", [datetime.min, datetime.max])
@pytest.mark.parametrize("zone", ZONES)
def test_the_first_and_the_last_time_that_there_is_do_no_harm(extreme: datetime, zone: str) -> None:
    assert isinstance(due_us(extreme, tz=zone), int)
