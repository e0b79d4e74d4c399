"""What a listing says where it is empty because a name is misspelt: that there is none of it, and which there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.requests import RunFilter
from perdure.terminal.text import clean

if TYPE_CHECKING:
    from perdure.store.protocol import Store

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


async def none_of_runs(
    store: Store, *, agent: str | None = None, tenant: str | None = None, tags: Sequence[str] = ()
) -> str | None:
    """The same for names that runs are listed by. Which there are, the newest runs say, as many as a page may have."""
    asked = [("run of agent", agent, RunFilter(agent=agent, limit=1))] if agent is not None else []
    asked += [("run of tenant", tenant, RunFilter(tenant=tenant, limit=1))] if tenant is not None else []
    asked += [("run with tag", tag, RunFilter(tags=(tag,), limit=1)) for tag in tags]
    for what, name, where in asked:
        if await store.list_runs(where):
            continue
        rows = await store.list_runs(RunFilter(limit=LIST_ROWS_MAX))
        known = {
            "run of agent": {row.agent for row in rows},
            "run of tenant": {row.tenant for row in rows if row.tenant is not None},
            "run with tag": {tag for row in rows for tag in row.tags},
        }
        return none_of(what, str(name), known[what]) if rows else None
    return None
