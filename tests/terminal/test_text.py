"""Durations, sizes and foreign text."""

from __future__ import annotations

import pytest

from perdure.terminal import text


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0, "0 µs"),
        (-5, "0 µs"),
        (850, "850 µs"),
        (1_200, "1.2 ms"),
        (120_000, "120 ms"),
        (3_410_000, "3.41 s"),
        (125_000_000, "2 min 05 s"),
        (11_520_000_000, "3 h 12 min"),
        (187_200_000_000, "2 d 04 h"),
    ],
)
def test_a_duration_has_two_units_at_most(us: int, shown: str) -> None:
    assert text.duration(us) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")]
)
def test_a_size_is_in_binary_units(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_an_age_is_counted_on_the_clock_that_is_given() -> None:
    assert text.ago(1_000_000, now_us=4_500_000) == "3 s ago"
    assert text.ago(4_500_000, now_us=1_000_000) == "now"
    assert text.ago(0, now_us=7_200_000_000) == "2 h ago"


def test_a_time_in_json_is_utc_to_the_microsecond() -> None:
    assert text.iso(1_700_000_000_000_007) == "2023-11-14T22:13:20.000007Z"


@pytest.mark.parametrize("hostile", ["\x1b[2J", "a\nb", "a\r\tb", "\x9b31m", "\u202eabc", "\u2028", "\ud800", "\x7f"])
def test_foreign_text_cannot_move_the_cursor_or_break_a_line(hostile: str) -> None:
    shown = text.clean(hostile)

    assert shown.startswith(("\\", "a\\")) and shown.encode("utf-8")
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in shown)


def test_emoji_and_other_scripts_stay_as_they_are() -> None:
    assert text.clean("naïve 👩‍🚀 東京") == "naïve 👩‍🚀 東京"


def test_the_first_line_of_an_error_is_the_first_that_says_something() -> None:
    assert text.first_line("\n  \n  it broke\nbadly") == "it broke"
    assert text.first_line("") == ""
