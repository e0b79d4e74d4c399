"""Questions worth asking about the documents: always the same ones for the same documents.

For Python's own topics they are shaped by hand from subjects and pairs that belong together. For any other folder
they come from the documents' headings. Both lists end with questions over headings, and go round again with other
templates, until there are as many as were asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, zip_longest
from typing import Final

from perdure.demo.corpus import Corpus
from perdure.errors import UsageError

QUESTIONS_MAX: Final = 10_000
"""More than this is a load test, for which `perdure bench` is the better tool."""

STATEMENTS: Final = (
    "assert", "break", "class", "continue", "def", "del", "for", "global", "if", "import", "nonlocal", "pass", "raise",
    "return", "try", "while", "with", "yield", "match",
)  # fmt: skip
TOPIC_OF: Final = {"def": "function", "match": "compound"}

STATEMENT_TEMPLATES: Final = (
    'How does the "{}" statement work?',
    'When would I use the "{}" statement?',
    'Where may the "{}" statement stand, and what are its rules?',
)

SUBJECTS: Final = {
    "assignment": "assignment to a list of targets",
    "async": "a coroutine function",
    "attribute-access": "a data descriptor",
    "augassign": "augmented assignment",
    "await": "an await expression",
    "binary": "floor division",
    "bitwise": "the bitwise XOR operator",
    "booleans": "short-circuit evaluation of boolean operations",
    "bltin-code-objects": "a code object",
    "bltin-ellipsis-object": "the Ellipsis object",
    "bltin-null-object": "the null object",
    "callable-types": "a callable instance",
    "calls": "unpacking of arguments in a call",
    "class": "a class decorator",
    "comparisons": "chaining of comparisons",
    "compound": "a case block guard",
    "context-managers": "a context manager",
    "conversions": "arithmetic conversion of operands",
    "customization": "the __hash__ method",
    "debugger": "a pdb breakpoint",
    "dict": "a dictionary display",
    "dynamic-features": "name resolution in eval and exec",
    "exceptions": "the termination model of exception handling",
    "execmodel": "a code block",
    "exprlists": "a trailing comma in an expression list",
    "floating": "a floating point literal",
    "formatstrings": "a format specification",
    "function": "a default parameter value",
    "id-classes": "a reserved class of identifiers",
    "identifiers": "a soft keyword",
    "imaginary": "an imaginary literal",
    "import": "a future statement",
    "in": "a membership test",
    "integers": "an integer literal",
    "lambda": "a lambda expression",
    "lists": "a list comprehension display",
    "naming": "the scope of a name",
    "numeric-types": "a reflected arithmetic method",
    "objects": "the identity of an object",
    "operator-summary": "operator precedence",
    "power": "the power operator",
    "raise": "exception chaining",
    "sequence-types": "the __getitem__ method of a container",
    "shifting": "a shifting operation",
    "slicings": "a slicing of a sequence",
    "specialattrs": "the method resolution order of a class",
    "specialnames": "a metaclass",
    "string-methods": "the str.split method",
    "strings": "a raw string literal",
    "subscriptions": "subscription of a mapping",
    "truth": "the truth value of an object",
    "try": "a finally clause",
    "types": "a generator function",
    "typesfunctions": "a user-defined function object",
    "typesmapping": "a dictionary view object",
    "typesmethods": "a bound method",
    "typesmodules": "the __dict__ of a module",
    "typesseq": "a range object",
    "typesseq-mutable": "slice assignment on a mutable sequence",
    "unary": "the unary bitwise inversion operator",
}

SUBJECT_TEMPLATES: Final = (
    "What is {} and how does it work?",
    "Which rules apply to {}?",
)

PAIRS: Final = (
    ("break", '"break"', "continue", '"continue"'),
    ("global", '"global"', "nonlocal", '"nonlocal"'),
    ("in", "a membership test", "comparisons", "an identity comparison"),
    ("lists", "a list display", "dict", "a dictionary display"),
    ("async", '"async for"', "for", 'a plain "for" loop'),
    ("return", '"return"', "yield", '"yield"'),
    ("try", '"finally"', "with", 'a "with" statement'),
    ("slicings", "slicing", "subscriptions", "subscription"),
    ("floating", "a floating point literal", "integers", "an integer literal"),
    ("unary", "a unary operator", "binary", "a binary arithmetic operator"),
    ("bitwise", "a bitwise operation", "booleans", "a boolean operation"),
    ("typesseq", "a tuple", "typesseq-mutable", "a mutable sequence"),
    ("customization", "__new__", "customization", "__init__"),
    ("customization", "__repr__", "customization", "__str__"),
    ("attribute-access", "__getattr__", "attribute-access", "__getattribute__"),
    ("calls", "a positional argument", "calls", "a keyword argument"),
    ("assignment", "an annotated assignment", "augassign", "an augmented assignment"),
    ("lambda", "a lambda", "function", "a function definition"),
    ("exceptions", "an exception", "raise", 'the "raise" statement'),
    ("class", "a class definition", "specialnames", "a metaclass"),
    ("strings", "a bytes literal", "strings", "a formatted string literal"),
    ("formatstrings", "a format specification", "string-methods", "the str.format method"),
    ("while", 'a "while" loop', "for", 'a "for" loop'),
    ("objects", "the identity of an object", "objects", "the value of an object"),
    ("typesmethods", "a bound method", "typesfunctions", "a function object"),
    ("pass", '"pass"', "continue", '"continue"'),
    ("shifting", "a shifting operation", "power", "the power operator"),
)

PAIR_TEMPLATES: Final = (
    "What is the difference between {} and {}?",
    "How do {} and {} relate?",
)

TITLE_TEMPLATES: Final = (
    "What do the documents say about {}?",
    "What should I know about {}?",
    "Which rules apply to {}?",
)

SECTION_TEMPLATES: Final = (
    "What does {} say about {}?",
    "Within {}, what should I know about {}?",
    "Within {}, which rules apply to {}?",
)


def ask(corpus: Corpus, count: int, *, python: bool) -> list[str]:
    """`count` different questions over this corpus, in a fixed order."""
    if not 1 <= count <= QUESTIONS_MAX:
        raise UsageError(f"--questions {count}: from 1 to {QUESTIONS_MAX}.")
    shaped = hand_shaped({passage.document for passage in corpus.passages}) if python else ()
    asked = list(islice(dict.fromkeys([*shaped, *over_headings(corpus)]), count))
    distinct = len(asked)
    while len(asked) < count:
        asked.append(f"{asked[len(asked) % distinct]} (asked again, {len(asked) // distinct})")
    return asked


def hand_shaped(topics: set[str]) -> Iterator[str]:
    """The questions for Python's topics, kinds mixed so that any first N are varied. Missing topics are left out."""
    statements = [s for s in STATEMENTS if TOPIC_OF.get(s, s) in topics]
    subjects = [subject for topic, subject in SUBJECTS.items() if topic in topics]
    pairs = [(a, b) for left, a, right, b in PAIRS if {left, right} <= topics]
    kinds: list[Iterable[str]] = [
        (template.format(s) for template in STATEMENT_TEMPLATES for s in statements),
        (template.format(a, b) for template in PAIR_TEMPLATES for a, b in pairs),
        (template.format(s) for template in SUBJECT_TEMPLATES for s in subjects),
    ]
    for row in zip_longest(*kinds):
        yield from (question for question in row if question)


def over_headings(corpus: Corpus) -> Iterator[str]:
    """Questions over the documents' titles and sections, and over sections that stand side by side."""
    named = [(heading(p.title), heading(p.section)) for p in corpus.passages]
    headings = [(title, section) for title, section in dict.fromkeys(named) if title and section]
    for on_title, on_section in zip(TITLE_TEMPLATES, SECTION_TEMPLATES, strict=True):
        for title, section in headings:
            yield on_title.format(title) if title == section else on_section.format(title, section)
    for (title, one), (other_title, other) in pairwise(headings):
        if title == other_title != one:
            yield f"Within {title}, what is the difference between {one} and {other}?"


def heading(text: str) -> str:
    """A heading as a name inside a question: quoted, without numbering; empty where it names nothing."""
    text = re.sub(r"^[\d.]+\s+", "", text).strip(" .:?!#").replace('"', "'")
    return f'"{text}"' if re.search(r"[A-Za-z]{3}", text) and len(text) <= 90 else ""
