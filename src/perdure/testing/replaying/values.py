"""Two recorded values side by side: where they differ, in words. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from perdure.core.display import to_jsonable

WHOLE: Final = 1 << 40
"""A limit of characters that no value reaches."""

PLACES_MAX: Final = 3
"""Places named in one value; past that there is another reason than those places."""

ABSENT: Final = "nothing there"


def places(was: Any, now: Any) -> list[tuple[str, str, str]]:
    """The first places where two decoded values differ: path, and both sides as JSON. Empty if they are the same; the
    order of a dict's keys does not count."""
    found: list[tuple[str, str, str]] = []
    for place in _differing(to_jsonable(was, WHOLE), to_jsonable(now, WHOLE), "$"):
        if len(found) == PLACES_MAX:
            found.append(("…", "", "and more"))
            break
        found.append(place)
    return found


def shown(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(to_jsonable(value), ensure_ascii=False)


def _differing(was: Any, now: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(was, dict) and isinstance(now, dict):
        for key in [*was, *(key for key in now if key not in was)]:
            step = f".{key}" if key.isidentifier() else f"[{json.dumps(key, ensure_ascii=False)}]"
            yield from _part(was.get(key, _NONE), now.get(key, _NONE), path + step)
    elif isinstance(was, list) and isinstance(now, list):
        for at in range(max(len(was), len(now))):
            yield from _part(was[at] if at < len(was) else _NONE, now[at] if at < len(now) else _NONE, f"{path}[{at}]")
    elif type(was) is not type(now) or was != now:
        yield path, _text(was), _text(now)


def _part(was: Any, now: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if was is _NONE or now is _NONE:
        yield path, _text(was), _text(now)
    else:
        yield from _differing(was, now, path)


_NONE: Final = object()


def _text(value: Any) -> str:
    return ABSENT if value is _NONE else json.dumps(value, ensure_ascii=False)
