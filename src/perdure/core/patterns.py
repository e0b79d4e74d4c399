"""Patterns of text in an answer's schema, and what it may cost to hold a text to one.

Python's `re` goes back over what it has matched, and some patterns let it do so in more ways than there is time for:
`(a+)+$` and thirty letters keep a process busy for minutes. Nothing can interrupt it. So what a pattern may cost is
counted before it is used, from its form: how many ways there are through it, as a power of the text's length. An answer
may cost so much and no more; a pattern that costs more on a short text is refused where the question is asked.

The count is an upper bound. Fixed parts have one way; an optional part has two; a repeat, one for each length at which
it can stop; parts in a row share the text between them. A repeat inside a repeat multiplies without end, unless each
round begins with a character that nothing else in it matches, as in `[a-z]+(-[a-z]+)*`.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from functools import lru_cache
from math import comb
from typing import Any, Final, NamedTuple

from perdure.errors import UsageError

WORK_MAX: Final = 200_000_000
"""Ways through patterns on all texts of an answer, times the steps on one of them. The worst that were found took half
a second."""

PATTERN_CHARS_MAX: Final = 1_000
"""Of a pattern."""

TEXT_CHARS_MIN: Final = 32
"""A pattern that is too costly on texts of this length is refused."""

REPEATS_MAX: Final = 100_000
"""A repeat that ends at more counts as endless."""

_syntax: Any = importlib.import_module("re._parser")
_FIXED: Final = frozenset(("LITERAL", "NOT_LITERAL", "ANY", "IN", "CATEGORY", "AT", "FAILURE"))
_ONE: Final = frozenset(("LITERAL", "NOT_LITERAL", "ANY", "IN"))
"""What matches one character."""


class _Ways(NamedTuple):
    """At most `factor` times the ways to put `repeats` cuts into the text."""

    factor: int
    repeats: int

    def then(self, other: _Ways) -> _Ways:
        return _Ways(self.factor * other.factor, self.repeats + other.repeats)

    def on(self, chars: int) -> int:
        return self.factor * comb(chars + self.repeats, self.repeats)


_SINGLE: Final = _Ways(1, 0)
_ENDLESS: Final = _Ways(WORK_MAX + 1, TEXT_CHARS_MIN)


class Pattern(NamedTuple):
    """What a pattern may cost."""

    ways: _Ways
    steps: int
    """On one of the ways, besides the text."""

    def work(self, chars: int) -> int:
        """At most, on a text of this length."""
        return self.ways.on(chars) * self.steps


@lru_cache(maxsize=1024)
def pattern_of(text: str) -> Pattern:
    """Raises `UsageError` for what is no pattern, or may cost too much on a text of any use."""
    if len(text) > PATTERN_CHARS_MAX:
        raise UsageError(f"a pattern has {len(text):,} characters, the limit is {PATTERN_CHARS_MAX:,}. {_REMEDY}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it thinks of an odd set is not for who answers
            re.compile(text)
            parsed = _syntax.parse(text)
        ways = _ways(parsed)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the pattern {text[:100]!r} is none that Python can read: {error}. Correct it.") from error
    if not _is_anchored(parsed):
        ways = _Ways(ways.factor, ways.repeats + 1)  # it may begin anywhere
    pattern = Pattern(ways, len(text) + int(parsed.getwidth()[0]) + 1)
    if pattern.work(TEXT_CHARS_MIN) > WORK_MAX:
        raise UsageError(
            f"the pattern {text[:100]!r} could keep whoever checks an answer busy without end: it has a repeat inside "
            f"a repeat, or too many of them. {_REMEDY}"
        )
    return pattern


def _is_anchored(parsed: Any) -> bool:
    """Whether it can match at the beginning of a text only."""
    first = str(parsed[0][1]) if len(parsed) and str(parsed[0][0]) == "AT" else ""
    return first == "AT_BEGINNING_STRING" or (first == "AT_BEGINNING" and not parsed.state.flags & re.MULTILINE)


def _ways(parts: Any) -> _Ways:
    """The ways through parts in a row."""
    ways = _SINGLE
    for operation, argument in parts:
        ways = ways.then(_ways_of(str(operation), argument))
        if ways.factor > WORK_MAX or ways.repeats > TEXT_CHARS_MIN:
            return _ENDLESS  # too many, whatever follows
    return ways


def _ways_of(operation: str, argument: Any) -> _Ways:
    if operation in _FIXED:
        return _SINGLE
    match operation:
        case "SUBPATTERN":
            return _ways(argument[-1])
        case "BRANCH":
            found = [_ways(branch) for branch in argument[1]]
            return _Ways(sum(each.factor for each in found), max(each.repeats for each in found))
        case "ASSERT" | "ASSERT_NOT":
            inner = _ways(argument[1])
            return _Ways(inner.factor * 2**inner.repeats, inner.repeats) if inner != _SINGLE else inner
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _repeated(*argument)
        case _:  # references back, conditions, and what Python alone has
            return _ENDLESS


def _repeated(least: int, most: Any, body: Any) -> _Ways:
    inner = _ways(body)
    endless = most is _syntax.MAXREPEAT or most > REPEATS_MAX
    if endless and (inner == _SINGLE or _delimited(body)):
        return _Ways(inner.factor * (inner.repeats + 1), inner.repeats + 1)
    if endless:
        return _ENDLESS
    if inner == _SINGLE:
        return _Ways(most - least + 1, 0)
    if most * max(inner.repeats, inner.factor.bit_length() - 1) > TEXT_CHARS_MIN:
        return _ENDLESS
    return _Ways((most - least + 1) * inner.factor**most, inner.repeats * most)


def _delimited(body: Any) -> bool:
    """Whether each round begins with a character that nothing else in it matches: then there is one way to cut a text
    into rounds, and only the last can be cut short."""
    first, *rest = _flat(body)
    if str(first[0]) != "LITERAL":
        return False
    mark = chr(first[1])
    return not any(_can_match(operation, argument, mark) for operation, argument in rest)


def _flat(parts: Any) -> list[tuple[Any, Any]]:
    """The parts, without the groups around the first of them; one that matches nothing where there is none."""
    items = list(parts)
    while items and str(items[0][0]) == "SUBPATTERN":
        items = [*items[0][1][-1], *items[1:]]
    return items or [("NOTHING", None)]


def _can_match(operation: Any, argument: Any, mark: str) -> bool:
    """Whether something in this part may match that character; yes where that is not known."""
    name = str(operation)
    if name in _ONE:
        one = _syntax.SubPattern(_syntax.State(), [(operation, argument)])
        compiled: Any = importlib.import_module("re._compiler").compile(one, re.IGNORECASE | re.DOTALL)
        return compiled.match(mark) is not None
    if name == "AT":
        return False
    return any(_can_match(*inner, mark) for inner in _inside(name, argument)) if name in _NESTING else True


_NESTING: Final = frozenset(("SUBPATTERN", "BRANCH", "MAX_REPEAT", "MIN_REPEAT"))


def _inside(name: str, argument: Any) -> Iterator[tuple[Any, Any]]:
    for parts in argument[1] if name == "BRANCH" else [argument[-1]]:
        yield from parts


_REMEDY: Final = 'Give a plainer one, "enum" or "maxLength", or let the agent look at the answer and ask again'
