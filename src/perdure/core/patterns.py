"""Patterns of text in an answer's schema, and what it may cost to hold a text to one.

Python's `re` goes back over what it has matched, and some patterns let it do so in more ways than there is time for:
`(a+)+$` and thirty letters keep a process busy for minutes. Nothing can interrupt it. So what a pattern may cost is
counted before it is used, from its form: how many ways there are through it, as a power of the text's length. An answer
may cost so much and no more; a pattern that costs more on a short text is refused where the question is asked.

The count is an upper bound. Fixed parts have one way; an optional part has two; a repeat, one for each length at which
it can stop; parts in a row share the text between them. A repeat of what has several ways multiplies without end,
unless the next character always tells which part takes it, as in `[a-z]+(-[a-z]+)*`: then each length has one way.
(Brüggemann-Klein and Wood, "One-unambiguous regular languages", 1998; here two ways to the same part count as two.)

How Python reads a pattern is learnt from the module that does so, which is not part of its interface. Where there is
none, every pattern is refused, by name: nothing else tells what it costs.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
import warnings
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

NESTED_MAX: Final = 8
"""Repeats inside each other that are looked into."""

REPEATS_MAX: Final = 100_000
"""A repeat that ends at more counts as endless."""


def _internal(name: str) -> Any:
    """A module of `re`'s own, or None in a Python that has no such."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


_syntax: Any = _internal("re._parser")
_compiler: Any = _internal("re._compiler")

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
_ONE_EACH: Final = _Ways(4, 1)
"""For each length, of what is more than one character: a round costs as much as four of them."""

_ENDLESS: Final = _Ways(WORK_MAX + 1, TEXT_CHARS_MIN)


class _Reading(NamedTuple):
    """How a part of a pattern is read."""

    flags: int
    alphabet: str
    """Characters enough to tell whether two parts may match the same one: where they do, they match one of these."""

    depth: int = 0
    """Of repeats around it."""

    def inside(self, group: Any) -> _Reading:
        _, added, removed, _ = group
        kinds = re.ASCII | re.UNICODE
        flags = self.flags & ~kinds if added & kinds else self.flags
        return self._replace(flags=(flags | added) & ~removed)


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
    if _syntax is None or _compiler is None:
        raise UsageError(
            f"what patterns cost cannot be told in Python {platform.python_version()}, so there can be none. Give "
            '"enum" or "maxLength", or let the agent look at the answer and ask again'
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it thinks of an odd set is not for who answers
            re.compile(text)
            parsed = _syntax.parse(text)
        named = "".join(chr(number) for number in {*_numbers(parsed)} if number > 127)
        reading = _Reading(parsed.state.flags, _ASCII + _FOLDED + _OTHERS + named)
        ways = _ways(parsed, reading)
        if ways.on(TEXT_CHARS_MIN) > _ONE_EACH.on(TEXT_CHARS_MIN):
            told = _ways_where_told(parsed, reading)
            ways = min(ways, told, key=lambda each: each.on(TEXT_CHARS_MIN))
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"the pattern {text[:100]!r} is none that Python can read: {error}. Correct it.") from error
    if not _is_anchored(parsed):
        ways = _Ways(ways.factor, ways.repeats + 1)  # it may begin anywhere
    pattern = Pattern(ways, len(text) + int(parsed.getwidth()[0]) + 1)
    if pattern.work(TEXT_CHARS_MIN) > WORK_MAX:
        raise UsageError(
            f"the pattern {text[:100]!r} could keep whoever checks an answer busy without end: its repeats can share a "
            f"text in too many ways, are nested too deeply, or refer back. {_REMEDY}"
        )
    return pattern


def _is_anchored(parsed: Any) -> bool:
    """Whether it can match at the beginning of a text only."""
    first = str(parsed[0][1]) if len(parsed) and str(parsed[0][0]) == "AT" else ""
    return first == "AT_BEGINNING_STRING" or (first == "AT_BEGINNING" and not parsed.state.flags & re.MULTILINE)


def _ways(parts: Any, reading: _Reading) -> _Ways:
    """The ways through parts in a row."""
    ways = _SINGLE
    for operation, argument in parts:
        ways = ways.then(_ways_of(str(operation), argument, reading))
        if ways.factor > WORK_MAX or ways.repeats > TEXT_CHARS_MIN:
            return _ENDLESS  # too many, whatever follows
    return ways


def _ways_of(operation: str, argument: Any, reading: _Reading) -> _Ways:
    if operation in _FIXED:
        return _SINGLE
    match operation:
        case "SUBPATTERN":
            return _ways(argument[-1], reading.inside(argument))
        case "BRANCH":
            found = [_ways(branch, reading) for branch in argument[1]]
            return _Ways(sum(each.factor for each in found), max(each.repeats for each in found))
        case "ASSERT" | "ASSERT_NOT":
            inner = _ways(argument[1], reading)
            return _Ways(inner.factor * 2**inner.repeats, inner.repeats) if inner != _SINGLE else inner
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, body = argument
            return _repeated(least, most, body, reading._replace(depth=reading.depth + 1))
        case _:  # references back, conditions, and what Python alone has
            return _ENDLESS


def _repeated(least: int, most: Any, body: Any, reading: _Reading) -> _Ways:
    inner = _ways(body, reading) if reading.depth <= NESTED_MAX else _ENDLESS
    endless = most is _syntax.MAXREPEAT or most > REPEATS_MAX
    if inner == _SINGLE:
        return _Ways(1, 1) if endless else _Ways(most - least + 1, 0)
    if inner != _ENDLESS and most > 1 and _is_told("MAX_REPEAT", (least, most, body), _NOTHING, reading):
        return _ONE_EACH
    if endless or most * max(inner.repeats, inner.factor.bit_length() - 1) > TEXT_CHARS_MIN:
        return _ENDLESS
    return _Ways((most - least + 1) * inner.factor**most, inner.repeats * most)


# -- what the next character tells ------------------------------------------------------------------------------------

_END: Final = ""
"""Among the characters that something may begin with: it may be nothing."""

_NOTHING: Final = frozenset((_END,))

_FOLDED: Final = "\u0130\u0131\u017f\u212a"
"""All beyond ASCII that equals a letter of it, but for the case."""

_OTHERS: Final = "\U00010000\U0001d7ce\u3000\U000f0000"
"""For all other characters: a letter, a digit, a space, and what is none of these."""

_ASCII: Final = "".join(map(chr, range(128)))


class _SeveralWays(Exception):
    """A character may be taken by more than one part."""


def _ways_where_told(parts: Any, reading: _Reading) -> _Ways:
    """Up to the first part of which the next character does not tell, each length has one way; so what follows begins
    at one place only, or matches nothing at many."""
    rest = list(parts)
    afters = [_NOTHING]
    for part in reversed(rest):
        try:
            afters.append(_starts([part], afters[-1], reading, checked=False))
        except _SeveralWays:
            afters.append(frozenset((_END, *reading.alphabet)))
    while rest and _is_told(str(rest[0][0]), rest[0][1], afters[len(rest) - 1], reading):
        del rest[0]
    if not rest:
        return _ONE_EACH
    ways = _ways(rest, reading)
    return _Ways(_ONE_EACH.factor + 2 * ways.factor, max(1, ways.repeats))


def _is_told(operation: str, argument: Any, after: frozenset[str], reading: _Reading) -> bool:
    """Whether the next character always tells which part in it takes it, or what is `after` it."""
    try:
        _starts_of(operation, argument, after, reading, checked=True)
    except _SeveralWays:
        return False
    return True


def _starts(parts: Any, after: frozenset[str], reading: _Reading, *, checked: bool) -> frozenset[str]:
    """What parts in a row may begin with, where `after` may follow. Raises `_SeveralWays`, if it is to be `checked`."""
    for operation, argument in reversed(list(parts)):
        after = _starts_of(str(operation), argument, after, reading, checked=checked)
    return after


def _starts_of(
    operation: str, argument: Any, after: frozenset[str], reading: _Reading, *, checked: bool
) -> frozenset[str]:
    if operation in _ONE:
        return _characters(operation, argument, reading)
    match operation:
        case "AT":
            return after
        case "SUBPATTERN":
            return _starts(argument[-1], after, reading.inside(argument), checked=checked)
        case "BRANCH":
            found = [_starts(branch, after, reading, checked=checked) for branch in _by_beginning(argument[1])]
            together = frozenset().union(*found)
            if checked and len(together) < sum(map(len, found)):
                raise _SeveralWays
            return together
        case "MAX_REPEAT" | "MIN_REPEAT":
            least, most, body = argument
            return _starts_of_rounds(least, most, body, after, reading, checked=checked)
        case _:
            raise _SeveralWays


def _by_beginning(branches: Any) -> list[Any]:
    """Alternatives that begin with the same part as one, which then goes on in several ways: of those, only the last
    begun costs more than one way."""
    groups: dict[str, list[list[Any]]] = {}
    for branch in map(list, branches):
        name = repr(branch[0]) if branch and str(branch[0][0]) in _ONE else f"alone {len(groups)}"
        groups.setdefault(name, []).append(branch)
    return [
        group[0] if len(group) == 1 else [group[0][0], ("BRANCH", (None, [branch[1:] for branch in group]))]
        for group in groups.values()
    ]


def _starts_of_rounds(
    least: int, most: Any, body: Any, after: frozenset[str], reading: _Reading, *, checked: bool
) -> frozenset[str]:
    begin = _starts(body, _NOTHING, reading, checked=False)
    if _END in begin or (checked and least != most and begin & after):
        raise _SeveralWays
    if checked:
        _starts(body, after | begin if most > 1 else after, reading, checked=True)
    return begin if least else begin | after


def _characters(operation: str, argument: Any, reading: _Reading) -> frozenset[str]:
    """Those of the alphabet that a part of one character may match."""
    one = _syntax.SubPattern(_syntax.State(), [(getattr(_syntax, operation), argument)])
    matched = frozenset(_compiler.compile(one, reading.flags & _OF_ONE).findall(reading.alphabet))
    beyond = [number for number in _numbers(argument) if number > 127]
    told = (
        not reading.flags & re.IGNORECASE and "RANGE" not in repr(argument) and not set(map(chr, beyond)) & set(_OTHERS)
    )
    return matched if told or not beyond else matched.union(_OTHERS)


def _numbers(parsed: Any) -> list[int]:
    """The characters in it, among other numbers."""
    return [int(each) for each in re.findall(r"\d+", repr(parsed)) if int(each) <= sys.maxunicode]


_OF_ONE: Final = re.IGNORECASE | re.DOTALL | re.UNICODE | re.ASCII


_REMEDY: Final = 'Give a plainer one, "enum" or "maxLength", or let the agent look at the answer and ask again'
