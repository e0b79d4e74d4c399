"""Patterns in schemas: none that is let through can keep whoever checks an answer busy."""

from __future__ import annotations

import re
import time
from itertools import product
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core import patterns
from perdure.core.answers import check_answer, schema_bytes
from perdure.core.patterns import PATTERN_CHARS_MAX, WORK_MAX, pattern_of
from perdure.errors import InvalidAnswer, UsageError


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$", r"(x+x+)+y", r"(.*)*", r"(a|aa)+$", r"^(a|b|ab)*c", r"(a{1,100}){1,100}$", r"(a?){60}a{60}",
        r"a?" * 40 + "a" * 40, r"a*" * 12, r"(a)\1", r"^(,a*,?)*$", r"(-[^a]+)*$", r"(?i)(a[A]+)*$",
        r"((a+)b?)*c", r"a" * (PATTERN_CHARS_MAX + 1), r"^(-a*a*)*$", r"^(\w+\s?)*$", r"^(a(?:|))*$", r"^(a?)*$",
        r"^(é\w*)*$", r"^(٣\d*)*$", r"^(A[^a]*)*$", r"(?s)^(\n.*)*$", r"(?i)^(é\u00c9*)*$", r"(?i)^(k\u212a*)*$",
        r"^(A(?i:a)*)*$", r"^(é(?a:\W)*)*$", r"^(\u3000\s*)*$", r"^(é[à-ü]*)*$", r"(?a)^(é(?u:\w)*)*$",
        "(" * 9 + "a*b" + "*c)*b" * 8 + ")*", r"^(a|ab|b)*$", r"^(ab|ab|b)*$",
        "(|)" * 30 + "$", "(a?|b?)" * 30 + "$", "^(?=(a|b)*)(c(?=a)|cd)*$",
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

    with pytest.raises(UsageError, match="too many ways"):
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
        (r"^(foo|bar)+$", "foobarfoo"),
        (r"^([\w-]+\.)+[a-z]+$", "some-mail.example.com"),
        (r"^[\w.+-]+@([\w-]+\.)+[a-z]{2,}$", "some.body@mail.example.com"),
        (r"^\w+([.-]\w+)*$", "a.slug-of.words"),
        (r"^(\w+\s)*\w+$", "some words"),
        (r"^\w+(\s*[,;]\s*\w+)*$", "one , two; three"),
        (r"^([^\s@]+@)+$", "a@b@"),
        (r"^(?:-[a-z]+){1,63}$", "-a-b"),
        (r"^(да|нет)(,(да|нет))*$", "да,нет"),
        (r"(?i)^(foo|far|bar)+$", "FARbar"),
        (r"^(?:(?!--).)*-$", "a-"),
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
        (r"^(?=[a-z]*\d)[a-z]*\d$", "a"), ("^(-[a-z]+)*(-[a-z]+)*$", "-"), ("^(-a+)*(-a+)*(-a+)*$", "-a"),
        ("^(foo|far|fab)*(foo|far|fab)*x$", "fab"), ("^(?:ab?)*(?:ab?)*$", "a"), ("(a*,)*b$", "a"), ("(a*,)*b$", ","),
        (r"^(\w+\s)*\w+$", "a "), ("^c*(?:a?){18}$", "c"), ("^c*a*a*a*b", "ca"),
        (r"^[\w.+-]+@([\w-]+\.)+[a-z]{2,}$", "a."),
        ("^x*(?:,x*)*(?=a*b)a*a*$", "x"), (r"^((a*b)*c)*((a*b)*c)*$", "abc"), (r"^(?:-a+){0,63}(?:-a+){0,63}$", "-a"),
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


def test_an_address_as_long_as_there_may_be_can_be_held_to_the_pattern_people_use() -> None:
    schema = schema_bytes({"pattern": r"^[\w.+-]+@([\w-]+\.)+[a-z]{2,}$"})
    check_answer(schema, "a" * 64 + "@" + "b." * 94 + "org")


def test_a_pattern_of_lines_may_begin_at_each_of_them() -> None:
    assert pattern_of("(?m)^a*b").work(1000) > 100 * pattern_of("^a*b").work(1000)


def test_a_question_that_was_asked_before_patterns_were_looked_at_takes_no_answer() -> None:
    with pytest.raises(InvalidAnswer, match="cannot be checked"):
        check_answer(b'{"pattern": "(a+)+$"}', "a" * 40 + "!")


_ONES = [
    "a", "A", "k", "s", "i", "\u212a", "\u017f", "\u0130", "é", "É", "ß", "٣", "\u3000", "\u2003", "\U00010000", "-",
    r"\\n", ".", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "[a-z]", "[^a-z]", r"[^\w-]", r"[^\s@]", "[à-ü]", "[^à-ü]",
    "[éa]",    r"[^\u3000]", "[^é]",
]  # fmt: skip


@pytest.mark.parametrize("flags", ["", "(?i)", "(?a)", "(?ia)", "(?s)"])
def test_a_round_that_may_go_on_with_the_character_it_begins_with_is_refused_in_any_script(flags: str) -> None:
    characters = "".join(map(chr, [*range(0x3100), *range(0xF000, 0x11000), *range(0x1D700, 0x1D800)]))
    matched = {one: {*re.findall(f"{flags}{one}", characters)} for one in _ONES}

    let_through = [
        (begin, inner) for begin, inner in product(_ONES, _ONES) if _is_let_through(f"{flags}^(?:{begin}{inner}*)*$")
    ]

    assert [pair for pair in let_through if matched[pair[0]] & matched[pair[1]]] == []
    disjoint = [pair for pair in product(_ONES, _ONES) if not matched[pair[0]] & matched[pair[1]]]
    assert len(let_through) > len(disjoint) / 2


def _is_let_through(pattern: str) -> bool:
    try:
        return bool(pattern_of(pattern))
    except UsageError:
        return False


_CHARACTERS = "ab-é1 "
_PARTS = st.recursive(
    st.sampled_from([*"abé1- ", r"\w", r"\d", r"\s", ".", "[ab]", "[^a]", "[.-]", "(?i:A)", "ab", "^", "$", "(?=a)"]),
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "*?", "{1,}"])).map("(?:{0[0]}){0[1]}".format),
        st.lists(part, min_size=2, max_size=3).map("".join),
        st.lists(part, min_size=2, max_size=3).map("|".join).map("({})".format),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    _PARTS,
    st.sampled_from(["", "^"]),
    st.sampled_from(["(?:{})*[^ab]!$", "{}!$", "b*{}[^b]$"]),
    st.lists(st.text(_CHARACTERS, min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_what_is_let_through_takes_no_more_than_what_was_counted(
    part: str, begin: str, form: str, units: list[str]
) -> None:
    pattern = begin + form.format(part)
    if not _is_let_through(pattern):
        return
    chars = 16
    while pattern_of(pattern).work(chars) <= WORK_MAX / 50 and chars < 20_000:
        for unit in units:
            began = time.process_time()
            re.search(pattern, (unit * chars)[:chars] + "?")
            assert time.process_time() - began < 1, (pattern, unit, chars)
        chars += chars // 4


def test_where_python_does_not_tell_how_it_reads_a_pattern_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "_syntax", None)
    pattern_of.cache_clear()
    with pytest.raises(UsageError, match="what patterns cost cannot be told in Python 3"):
        schema_bytes({"pattern": "^a$"})


_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OLD_DIALECT = "http://json-schema.org/draft-07/schema#"
_COSTLY = {"pattern": "a*a*a*b"}


@pytest.mark.parametrize(
    ("schema", "answer"),
    [
        ({"$schema": _DIALECT, "properties": {"child": {"$ref": "#"}}, **_COSTLY}, {"child": "a" * 2000}),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$schema": _OLD_DIALECT, **_COSTLY}}}, "a" * 2000),
        ({"allOf": [{"$schema": _OLD_DIALECT, "anyOf": [_COSTLY]}]}, "a" * 2000),
        ({"$schema": _OLD_DIALECT, "items": {"$schema": _DIALECT, "not": _COSTLY}}, ["a" * 2000]),
        ({"properties": {"x": {"$schema": "urn:unknown", **_COSTLY}}}, {"x": "a" * 2000}),
        ({"$schema": "http://[", **_COSTLY}, "a" * 2000),
        ({"$ref": "#/x", "x": {"$schema": 7, **_COSTLY}}, "a" * 2000),
    ],
)
def test_parts_of_any_dialect_count_towards_what_an_answer_may_cost(schema: dict[str, Any], answer: Any) -> None:
    text = schema_bytes(schema)
    began = time.process_time()
    with pytest.raises(InvalidAnswer, match="could take for ever"):
        check_answer(text, answer)
    assert time.process_time() - began < 1


def test_a_part_that_names_a_dialect_is_read_in_it() -> None:
    schema = schema_bytes({"properties": {"x": {"$schema": _OLD_DIALECT, "dependencies": {"a": ["b"]}}}})
    check_answer(schema, {"x": {"a": 1, "b": 2}})
    with pytest.raises(InvalidAnswer, match="dependency"):
        check_answer(schema, {"x": {"a": 1}})


@pytest.mark.parametrize("names", [["a", "(?i)b"], ["(?P<n>a)", "(?P<n>b)"]])
def test_patterns_of_names_that_cannot_be_joined_are_refused_where_the_question_is_asked(names: list[str]) -> None:
    with pytest.raises(UsageError, match="patternProperties"):
        schema_bytes({"patternProperties": {name: {} for name in names}, "additionalProperties": False})
