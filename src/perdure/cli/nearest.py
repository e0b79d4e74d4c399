"""What a listing says where it is empty because a name is misspelt: that there is none of it, and which there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from perdure.terminal.text import clean

NAMED_MAX: Final = 10
"""Names that are told."""


def none_of(what: str, name: str, known: Iterable[str]) -> str | None:
    """`no sink 'hok' (did you mean hook?); there are: hook, bills`. None where there is one of that name."""
    names = sorted(set(known))
    if name in names:
        return None
    near = difflib.get_close_matches(name, names, n=1)
    meant = f" (did you mean {clean(near[0])}?)" if near else ""
    if not names:
        return f"no {what} {clean(name)!r}; there is none"
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return f"no {what} {clean(name)!r}{meant}; there are: {', '.join(map(clean, names[:NAMED_MAX]))}{more}"
