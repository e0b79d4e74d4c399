"""What adapters are made with, checked when they are made: a mistake is told there, and not by every delivery's try.

Messages name what is wrong and show none of it: an address has a password, a header a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from perdure.core.durations import Duration, seconds
from perdure.core.retry import Retry
from perdure.core.shown import shown
from perdure.errors import UsageError
from perdure.runtime.sinks import DELIVERY_RETRY
from perdure.runtime.step import as_retry

SCHEME_CHARS: Final = 20
"""Of a scheme, in a message. It is nobody's secret, unless somebody has pasted one."""


def one_try(timeout: Duration) -> float:
    """How long a try may take, in seconds."""
    limit_s = seconds(timeout, what="a time-out")
    if limit_s == 0:
        raise UsageError("A time-out of 0 would fail every delivery; give a number of seconds above 0.")
    return limit_s


def tries(retry: Retry | int) -> Retry:
    """How often a sink tries: a policy, or a number of tries, which are as far apart as they are without one."""
    return replace(DELIVERY_RETRY, attempts=as_retry(retry).attempts) if isinstance(retry, int) else as_retry(retry)


def checked_url(url: object, schemes: Sequence[str], *, what: str, host: bool = True) -> str:
    """The URL, if it is one of these schemes, and names a host where there must be one."""
    begins = " or ".join(f"{scheme}://" for scheme in schemes)
    if not isinstance(url, str):
        raise UsageError(f"{what} is text that begins with {begins}, not a {type(url).__name__}.")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise UsageError(f"{what} begins with {begins}; this one has no scheme.")
    if scheme.lower() not in schemes:
        raise UsageError(f"{what} begins with {begins}; this one is of {scheme[:SCHEME_CHARS]!r}.")
    if any(char.isspace() or not char.isprintable() for char in url):
        raise UsageError(f"{what} has a space, a line break or the like in it.")
    if host and rest[:1] in ("", "/", "?", "#", ":"):
        raise UsageError(f"{what} names a host after {scheme}://; this one has none.")
    return url


def checked_name(
    value: object, *, what: str, bytes_max: int | None = None, without: str = "", empty: bool = False
) -> str:
    """The name, if the broker can have one like it: text, not too long, without blanks where some characters may not
    be in it (`without`)."""
    if not isinstance(value, str) or not (value or empty):
        raise UsageError(f"{what} is {shown(value)}; give {'text' if empty else 'a text that is not empty'}.")
    try:
        length = len(value.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is {shown(value)}, which has half a character in it.") from error
    if bytes_max is not None and length > bytes_max:
        raise UsageError(f"{what} has {length} bytes; it may have {bytes_max}.")
    wrong = [char for char in value if char in without or (without and (char.isspace() or not char.isprintable()))]
    if wrong:
        raise UsageError(f"{what} is {shown(value)}; it must be without {wrong[0]!r}.")
    return value


def driver_options(given: object, *, own: Sequence[str], what: str) -> dict[str, Any]:
    """Further arguments of a driver, but for those that the adapter gives itself."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise UsageError(
            f"client of {what} is a dict of further arguments by their names, not a {type(given).__name__}."
        )
    if taken := sorted(set(own).intersection(given)):
        raise UsageError(f"{taken[0]} is not for client to say: {what} gives it itself.")
    return dict(given)


def header_lines(given: object, *, own: frozenset[str]) -> dict[str, str]:
    """Headers, by their names in lower case, if HTTP takes them as they are."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"headers is a dict of text by text, not a {type(given).__name__}.")
    lines: dict[str, str] = {}
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"headers is a dict of text by text; the one called {shown(key)} is not.")
        lowered = key.lower()
        if not key or any(char not in TOKEN for char in key):
            raise UsageError(f"No header can be called {shown(key)}.")
        if lowered in own:
            raise UsageError(f"The header {lowered} is the webhook's own.")
        if lowered in lines:
            raise UsageError(f"The header {lowered} is given twice.")
        if value != value.strip() or not value.isascii() or any(not char.isprintable() for char in value):
            raise UsageError(f"The header {lowered} has blanks around it, or characters that HTTP does not take.")
        lines[lowered] = value
    return lines


TOKEN: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""What a header's name is made of (RFC 9110, section 5.6.2)."""


def whole_number(value: object, *, what: str, most: int) -> int:
    """The number, if it is a whole one from 1 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise UsageError(f"{what} is {shown(value)}; give a whole number from 1 to {most:,}.")
    return value
