"""A value in a few characters, for messages that say what is wrong with it.

Whatever somebody gives may be deeper than the stack, longer than a screen, or unable to say what it is; the message
about it must come out all the same.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from perdure.core.paths import a_type

_CHARS_MAX: Final = 200
"""Of one string, number or object."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _CHARS_MAX
_short.maxlevel, _short.maxdict, _short.maxlist, _short.maxtuple = 4, 10, 20, 20


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Behind a name that is not known: ` (did you mean 'x'?)`, the known one that looks most like it; empty where none
    does."""
    near = get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def shown(value: object) -> str:
    """The value as its `repr` has it, shortened."""
    try:
        return _short.repr(value)
    except (Exception, SystemExit):  # the edge of user code: its repr
        return f"<{a_type(type(value))}>"
