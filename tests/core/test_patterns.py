"""Patterns in schemas: none that is let through can keep whoever checks an answer busy."""

from __future__ import annotations

import re
import time
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from perdure.core.answers import check_answer, schema_bytes
from perdure.core.patterns import PATTERN_CHARS_MAX, WORK_MAX, pattern_of
from perdure.errors import InvalidAnswer, UsageError


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$", r"(x+x+)+y", r"(.*)*", r"(a|aa)+$", r"^(a|b|ab)*c", r"(a{1,100}){1,100}$", r"(a?){60}a{60}",
        r"a?" * 40 + "a" * 40, r"a*" * 12, r"(a)\1", r"^(,a*,?)*$", r"(-[^a]+)*$", r"(?i)(a[A]+)*$",
        r"((a+)b?)*c", r"a" * (PATTERN_CHARS_MAX + 1),
    ],
)  # fmt: skip
def test_a_pattern_that_could_take_for_ever_is_refused_where_the_question_is_asked(pattern: str) -> None:
    schemas: list[Any] = [
        {"type": "string", "pattern": pattern},
        {"type": "object", "patternProperties": {pattern: {}}},
        {"properties": {"default": {"pattern": pattern}}},
        Annotated[str, msgspec.Meta(pattern=pattern)],
    ]
    for schema in schemas:
        with pytest.raises(UsageError, match="pattern"):
            schema_bytes(schema)


def test_a_model_with_such_a_pattern_is_refused_too() -> None:
    class Answer(pydantic.BaseModel):
        text: str = pydantic.Field(pattern=r"^(a+)+$")

    with pytest.raises(UsageError, match="repeat inside a repeat"):
        schema_bytes(Answer)


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (r"^[a-z]+$", "yes"),
        (r"^[^@]+@[^@]+\.[^@]+$", "somebody@example.com"),
        (r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", "some.body@mail.example.com"),
        (r"^[a-z0-9]+(-[a-z0-9]+)*$", "a-slug-of-words"),
        (r"^\d{1,3}(\.\d{1,3}){3}$", "192.168.1.254"),
        (r"^(yes|no)(,(yes|no))*$", "yes,no,yes"),
        (r"^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$", "12345678-1234-1234-1234-123456789abc"),
        (r"(?=.*\d)(?=.*[a-z]).{8,}", "passw0rd"),
        (r"^#[0-9a-fA-F]{6}$", "#ff00aa"),
        (r"^https?://\S+$", "https://example.com/a?b=c"),
    ],
)
def test_patterns_that_people_write_are_let_through(pattern: str, fits: str) -> None:
    schema = schema_bytes({"type": "string", "pattern": pattern})
    check_answer(schema, fits)
    with pytest.raises(InvalidAnswer):
        check_answer(schema, "\n")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a*a*a*b", "a"), ("^[^@]*[^@]*[^@]*b$", "a"), ("[a-z]*[a-z]*y", "a"), ("^(-[a-z]+)*(-[a-z]+)*$", "-a"),
        ("(-[a-z]+)*$", "-a"), ("(?:ab|ac)x*[a-z]*y", "abx"), ("a?" * 11 + "a" * 40 + "z", "a"), ("a{5000}", "a"),
        (r"^(?=[a-z]*\d)[a-z]*\d$", "a"),
    ],
)  # fmt: skip
def test_the_longest_text_that_is_held_to_a_pattern_takes_no_time_to_speak_of(pattern: str, text: str) -> None:
    chars = next(chars for chars in range(100_000, 0, -1) if pattern_of(pattern).work(chars) <= WORK_MAX)
    longest = (text * chars)[: chars - 1] + "!"

    began = time.process_time()
    re.search(pattern, longest)

    assert time.process_time() - began < 5


@pytest.mark.parametrize("answer", ["a" * 1000, ["a" * 140] * 100, {"name": ["a" * 140] * 100}, {"a" * 1000: 1}])
def test_more_text_than_patterns_can_be_held_to_is_refused_and_the_question_stays(answer: Any) -> None:
    part: dict[str, Any] = {"pattern": "a*a*a*b"}
    schema = schema_bytes(
        part | {"items": part, "additionalProperties": {"items": part}, "patternProperties": {"^a*a*a*b": {}}}
    )
    began = time.process_time()
    with pytest.raises(InvalidAnswer, match="stays open"):
        check_answer(schema, answer)
    assert time.process_time() - began < 5
    check_answer(schema, ["ab"] * 100)


def test_a_pattern_of_lines_may_begin_at_each_of_them() -> None:
    assert pattern_of("(?m)^a*b").work(1000) > 100 * pattern_of("^a*b").work(1000)


def test_a_question_that_was_asked_before_patterns_were_looked_at_takes_no_answer() -> None:
    with pytest.raises(InvalidAnswer, match="cannot be checked"):
        check_answer(b'{"pattern": "(a+)+$"}', "a" * 40 + "!")
