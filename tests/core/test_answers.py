"""Answers: which fit, what is said of those that do not, and when two are the same."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.answers import canonical_bytes, check_answer, decode_answer, payload_digest, schema_bytes
from perdure.core.codec import codec_for, decode
from perdure.core.limits import SCHEMA_BYTES_MAX
from perdure.errors import InvalidAnswer, NotSerializable, UsageError
from tests.support.ids import plainly


class Size(Enum):
    """A choice."""

    SMALL = "small"
    LARGE = "large"


class Address(pydantic.BaseModel):
    """A model inside a model."""

    street: str
    since: date


class Person(pydantic.BaseModel):
    """A model with an alias."""

    name: str = pydantic.Field(alias="fullName")
    home: Address | None = None


class Open(pydantic.BaseModel, extra="allow"):
    """A model that takes other fields too."""

    street: str


class Yes(msgspec.Struct, tag=True):
    """One of two answers."""

    limit: int


class No(msgspec.Struct, tag=True):
    """The other."""

    why: str


@dataclass
class Decision:
    """An ordinary answer."""

    verdict: Literal["yes", "no"]
    amount: float = 0
    size: Size = Size.SMALL
    by: dict[int, str] = field(default_factory=dict)
    proof: bytes = b""
    who: Person | None = None


class Options(TypedDict, total=False):
    """A dict with names."""

    fast: bool


FITTING: list[tuple[Any, Any, Any]] = [
    (bool, True, True),
    (int, 3, 3),
    (int, 3.0, 3),
    (float, 3, 3.0),
    (str, "x", "x"),
    (type(None), None, None),
    (int | None, None, None),
    (Literal["a", 1], "a", "a"),
    (Size, "large", Size.LARGE),
    (Size, Size.LARGE, Size.LARGE),
    (list[int], [1, 2], [1, 2]),
    (tuple[int, str], [1, "b"], (1, "b")),
    (set[int], [1, 2], {1, 2}),
    (set[int], {2, 1}, {1, 2}),
    (date, "2026-12-01", date(2026, 12, 1)),
    (datetime, datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
    (timedelta, "PT3S", timedelta(seconds=3)),
    (Decimal, "1.20", Decimal("1.20")),
    (UUID, "00000000-0000-0000-0000-000000000007", UUID(int=7)),
    (bytes, "aGk=", b"hi"),
    (bytes, b"hi", b"hi"),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[int, str], {1: "a"}, {1: "a"}),
    (Options, {"fast": True}, {"fast": True}),
    (Yes | No, {"type": "No", "why": "late"}, No("late")),
    (Yes | No, Yes(3), Yes(3)),
    (Decision, {"verdict": "yes"}, Decision("yes")),
    (Decision, Decision("no", 2.5, Size.LARGE), Decision("no", 2.5, Size.LARGE)),
    (Decision, {"verdict": "no", "by": {"1": "me"}, "proof": "aGk="}, Decision("no", by={1: "me"}, proof=b"hi")),
    (Address, {"street": "A", "since": "2026-12-01"}, Address(street="A", since=date(2026, 12, 1))),
    (Address, Address(street="A", since=date(2026, 12, 1)), Address(street="A", since=date(2026, 12, 1))),
    (Person, {"name": "Ada"}, Person(fullName="Ada")),
    (Address | Person, {"name": "Ada"}, Person(fullName="Ada")),
    (list[Address], [], []),
    ({"type": "integer", "minimum": 3}, 3, 3),
    ({"enum": ["a", "b"]}, "b", "b"),
    ({}, {"any": [1, None]}, {"any": [1, None]}),
    (Open, {"street": "A", "flor": 3}, Open.model_validate({"street": "A", "flor": 3})),
    (None, {"any": [1, None]}, {"any": [1, None]}),
    (Any, b"x", b"x"),
]


@pytest.mark.parametrize(("schema", "answer", "expected"), FITTING, ids=plainly)
def test_an_answer_that_fits_comes_back_as_what_was_asked_for(schema: Any, answer: Any, expected: Any) -> None:
    check_answer(schema_bytes(schema), answer)
    assert decode_answer(schema, canonical_bytes(answer)) == expected


@pytest.mark.parametrize(
    ("schema", "answer", "path", "words"),
    [
        (bool, 1, "$", "'boolean'"),
        (int, "1", "$", "'integer'"),
        (int, True, "$", "'integer'"),
        (str, None, "$", "'string'"),
        (Literal["yes", "no"], "maybe", "$", "'maybe' is not one of"),
        (list[int], [1, "2"], "$[1]", "'integer'"),
        (date, "tomorrow", "$", "not a 'date'"),
        (UUID, "7", "$", "not a 'uuid'"),
        (Decimal, "much", "$", "not a 'decimal'"),
        (timedelta, "long", "$", "not a 'duration'"),
        (Address, {"street": "A", "since": "then"}, "$.since", "not a 'date'"),
        (Decision, {}, "$", "'verdict' is a required property"),
        (Decision, {"verdict": "yes", "who": {"name": 3}}, "$.who.name", "'string'"),
        (Decision, "yes", "$", "'object'"),
        ({"type": "integer", "minimum": 3}, 2, "$", "less than the minimum"),
        ({"type": "object", "properties": {"a b": {"type": "null"}}}, {"a b": 1}, "$['a b']", "'null'"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, 1, "$", "'null'"),
        ({"not": {}}, None, "$", ""),
        ({"format": "date-time"}, "soon", "$", "not a 'date-time'"),
        (Decision, {"verdict": "yes", "amont": 3}, "$", "there is no field 'amont' (did you mean 'amount'?)"),
        (Decision | None, {"verdict": "yes", "amont": 3}, "$", "no field 'amont'"),
        (Decision, {"verdict": "yes", "who": {"name": "A", "hme": None}}, "$.who", "(did you mean 'home'?)"),
        (list[Options], [{"fsat": True}], "$[0]", "there is no field 'fsat' (did you mean 'fast'?)"),
        (Yes | No, {"type": "Yes", "limit": 3, "qqq": 1}, "$", "there is no field 'qqq'. Expected there: no other"),
    ],
    ids=plainly,
)
def test_one_that_does_not_fit_is_refused_with_where_and_what(schema: Any, answer: Any, path: str, words: str) -> None:
    with pytest.raises(InvalidAnswer, match="Expected there: ") as refused:
        check_answer(schema_bytes(schema), answer)
    assert refused.value.path == path and words in str(refused.value)
    assert len(str(refused.value)) < 700


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "intger"}, {"minimum": "3"}, {"pattern": "["}, {"$ref": "#/$defs/absent"}, {"enum": 3},
        {"$ref": "http://localhost/schema.json"}, {"items": {"$ref": "other.json"}}, {"default": object()},
        {"enum": ["x" * SCHEMA_BYTES_MAX]}, True, 5, "string", print, object(),
        subprocess.Popen, list[Exception], {"type": 7},
    ],
    ids=plainly,
)  # fmt: skip
def test_a_schema_that_is_none_is_refused_where_it_is_given(schema: Any) -> None:
    with pytest.raises(UsageError):
        schema_bytes(schema)


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = schema_bytes({"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "x"}})
    check_answer(schema, {"$ref": "x"})


def test_a_schema_keeps_the_order_in_which_its_fields_were_declared() -> None:
    properties = msgspec.json.decode(schema_bytes(Decision) or b"")["$defs"]["Decision"]["properties"]
    assert list(properties) == ["verdict", "amount", "size", "by", "proof", "who"]


@pytest.mark.parametrize("nothing", [None, Any, object])
def test_where_anything_will_do_there_is_no_schema(nothing: Any) -> None:
    assert schema_bytes(nothing) is None
    check_answer(None, object())


def test_a_schema_of_an_older_draft_is_read_as_one() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"n": {"type": "integer"}},
        "items": [{"$ref": "#/definitions/n"}],
    }
    with pytest.raises(InvalidAnswer):
        check_answer(schema_bytes(schema), ["1"])


# -- the canonical form -----------------------------------------------------------------------------------------------

data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
    | st.binary(max_size=20),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=12,
)  # fmt: skip


def reordered(value: Any) -> Any:
    """The same, with dicts in another order and whole numbers as floats where that loses nothing."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return [reordered(part) for part in value]
    if type(value) is int and abs(value) <= 2**53:
        return float(value)
    return value


@given(data)
def test_equal_answers_have_equal_bytes_and_come_back_equal(answer: Any) -> None:
    recorded = canonical_bytes(answer)
    assert canonical_bytes(reordered(answer)) == recorded
    assert decode(recorded) == answer
    assert canonical_bytes(decode(recorded)) == recorded


@given(data, data)
def test_different_answers_have_different_bytes(one: Any, other: Any) -> None:
    assert (canonical_bytes(one) == canonical_bytes(other)) == (_strict(one) == _strict(other))


def _strict(value: Any) -> Any:
    """A value that is equal to no other that JSON tells from it: True is not 1."""
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_strict(part) for part in value]
    return (isinstance(value, bool), value)


@pytest.mark.parametrize(
    "answer", [object(), print, 2**70, "\ud800", {"a": object()}, {1: 2, "a": 3}, lambda: None, Size, [pydantic]]
)
def test_what_is_no_data_is_no_answer(answer: Any) -> None:
    with pytest.raises(NotSerializable):
        canonical_bytes(answer)


@pytest.mark.parametrize("depth", [990, 2_000, 100_000])
def test_an_answer_without_end_is_refused(depth: int) -> None:
    deep: Any = 1.0
    for _ in range(depth):
        deep = [deep]
    with pytest.raises((NotSerializable, InvalidAnswer)):
        check_answer(schema_bytes({"type": "null"}), deep)
    with pytest.raises(NotSerializable, match="too deep"):
        canonical_bytes(deep)


def test_an_answer_too_deep_for_a_recursive_schema_is_refused() -> None:
    schema = schema_bytes({"$ref": "#/$defs/n", "$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}})
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    with pytest.raises(InvalidAnswer, match="nested too deeply"):
        check_answer(schema, deep)


def test_an_answer_that_is_not_of_the_type_is_refused_when_it_is_read() -> None:
    with pytest.raises(NotSerializable, match="Decision"):
        decode_answer(Decision, canonical_bytes({"verdict": "maybe"}))


def test_a_digest_names_the_payload() -> None:
    one, other = codec_for(Any).encode({"pay": 1}), codec_for(Any).encode({"pay": 2})
    assert payload_digest(one) != payload_digest(other) and len(payload_digest(one)) == 40


def test_nothing_is_loaded_for_schemas_until_one_is_used() -> None:
    script = "import perdure, sys; print(sorted(m for m in sys.modules if m.startswith(('jsonschema', 'referencing'))))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
