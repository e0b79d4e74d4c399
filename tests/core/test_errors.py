"""Recorded exceptions: text, whatever the exception does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.codec import Codec
from perdure.core.errors import decode_error, encode_error, error_info, printable
from perdure.core.limits import ERROR_CHARS_MAX
from perdure.core.records import ErrorInfo
from perdure.errors import NotSerializable


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_c15_an_exception_with_keyword_only_arguments_is_recorded_and_read() -> None:
    info = decode_error(encode_error(error_info(raised(KeywordOnly(code=7)), failed_keys=("charge",))))

    assert (info.type.rpartition(".")[2], info.message, info.failed_keys) == ("KeywordOnly", "code 7", ("charge",))
    assert "raise error" in info.traceback


def test_builtin_types_have_short_names() -> None:
    assert error_info(ValueError("x")).type == "ValueError"
    assert error_info(NotSerializable("x")).type == "perdure.errors.NotSerializable"


@pytest.mark.parametrize(("error", "why"), [(Unprintable(), "RuntimeError"), (Exiting(), "SystemExit")])
def test_an_exception_without_text_is_recorded(error: Exception, why: str) -> None:
    info = error_info(raised(error))

    assert why in info.message
    assert type(error).__name__ in info.traceback


def test_an_exception_with_broken_notes_is_recorded() -> None:
    error = raised(ValueError("x"))
    error.__notes__ = 3  # type: ignore[assignment]

    assert error_info(error).message == "x"


def test_c16_a_lone_surrogate_and_a_nul_in_an_error_text_become_printable() -> None:
    info = error_info(raised(ValueError("a\ud800b\0c")))

    assert info.message == "a\\ud800b\\x00c"
    assert decode_error(encode_error(info)) == info


def test_causes_contexts_and_groups_are_in_the_traceback_and_our_own_frames_are_not() -> None:
    def fail() -> None:
        try:
            Codec().encode({"a": object()})
        except NotSerializable as error:
            raise ExceptionGroup("both", [raised(KeyError("inner")), error]) from error

    try:
        fail()
    except ExceptionGroup as group:
        text = error_info(group).traceback

    assert all(part in text for part in ("KeyError", "NotSerializable", "in fail", "direct cause"))
    assert "/perdure/core/" not in text


def test_the_text_of_a_group_says_what_its_members_are_and_say() -> None:
    inner = ExceptionGroup("inner", [NotSerializable("no", path="$"), Unprintable()])
    group = BaseExceptionGroup("unhandled errors in a TaskGroup", [ValueError("seven"), inner, KeyboardInterrupt()])
    assert error_info(group).message == (
        "unhandled errors in a TaskGroup (3 sub-exceptions): ValueError: seven; perdure.errors.NotSerializable: no; "
        "tests.core.test_errors.Unprintable: <no text: RuntimeError while it was made>; KeyboardInterrupt: "
    )


def test_the_text_of_a_large_group_is_bounded() -> None:
    many = error_info(ExceptionGroup("all", [ValueError(n) for n in range(1000)])).message
    assert many.endswith("; ValueError: 7; and more")
    deep: Exception = ValueError("the bottom")
    for _ in range(1_000):
        deep = ExceptionGroup("a level", [deep])
    assert error_info(ExceptionGroup("top", [deep])).message == "top (1 sub-exception): ValueError: the bottom"


def test_a_chain_that_bites_its_tail_is_recorded() -> None:
    one, other = raised(ValueError("one")), raised(ValueError("other"))
    one.__cause__, other.__cause__ = other, one

    assert "other" in error_info(one).traceback


def test_a_long_traceback_keeps_head_and_tail() -> None:
    info = error_info(raised(ValueError("start " + "x" * 100_000 + " end")))

    for text in (info.message, info.traceback):
        assert len(text) <= ERROR_CHARS_MAX
        assert "left out" in text
        assert text.rstrip().endswith("end")


@given(st.text(st.characters()), st.integers(0, 300))
def test_printable_text_is_valid_and_bounded(text: str, limit: int) -> None:
    made = printable(text, limit)

    assert "\0" not in made
    assert made.encode().decode() == made
    assert len(made) <= max(limit, 60)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x00", b"\x81\xa4type\x03"])
def test_an_unreadable_error_is_an_error_that_says_so(data: Any) -> None:
    info = decode_error(data)

    assert isinstance(info, ErrorInfo)
    assert "cannot be read" in info.message
