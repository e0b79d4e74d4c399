"""A schema in words, and an answer that fits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from perdure.cli.schema_words import example, fits, in_words
from perdure.core.answers import schema_bytes


@dataclass
class Decision:
    """An answer."""

    buy: bool
    limit: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    """An answer without an end."""

    name: str
    below: list[Tree] = field(default_factory=list)


def schema_of(what: Any) -> dict[str, Any]:
    text = schema_bytes(what)
    assert text is not None
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (bool, "true or false"),
        (str, "a text"),
        (int | None, "a whole number or null"),
        (Literal["yes", "no"], '"no" or "yes"'),
        (list[int], "a list, each item a whole number"),
        (Annotated[int, msgspec.Meta(ge=1, le=10)], "a whole number from 1 to 10"),
        (Annotated[str, msgspec.Meta(max_length=5)], "a text, 5 characters at most"),
        (Annotated[datetime, msgspec.Meta(tz=True)], "a time with its offset from UTC"),
        (Annotated[datetime, msgspec.Meta(tz=False)], "a time without an offset"),
        ({"const": 3}, "3"),
        ({"type": ["string", "null"]}, "a text or null"),
        ({"not": {"type": "null"}}, "what its schema says"),
        ({"type": "object"}, "an object"),
    ],
)
def test_a_schema_is_told_in_words(what: Any, words: str) -> None:
    assert in_words(schema_of(what)) == words


def test_an_object_names_what_it_must_have_and_what_it_may() -> None:
    assert in_words(schema_of(Decision)) == (
        "an object with buy (true or false), perhaps with limit (a whole number; 0 if left out), "
        "tags (a list, each item a text; [] if left out)"
    )


def test_a_schema_that_holds_itself_comes_to_an_end() -> None:
    assert "what its schema says" in in_words(schema_of(Tree))
    assert example(schema_of(Tree)) == '{"name": "text"}'


def test_without_a_schema_anything_will_do() -> None:
    assert in_words(None).startswith("any JSON value") and example(None) is None and fits(None, object)


@pytest.mark.parametrize("what", [bool, str, int, Decision, list[Decision], Literal["a"], datetime, {"type": "null"}])
def test_an_example_fits(what: Any) -> None:
    shown = example(schema_of(what))

    assert shown is not None and fits(schema_of(what), msgspec.json.decode(shown))


def test_where_no_example_is_found_none_is_shown() -> None:
    assert example(schema_of({"type": "string", "pattern": "^[A-Z]{40}$"})) is None


def test_a_time_with_a_zone_is_one() -> None:
    shown = example(schema_of(Annotated[datetime, msgspec.Meta(tz=True)]))

    assert shown is not None
    assert datetime.fromisoformat(msgspec.json.decode(shown)).tzinfo in (UTC,)
