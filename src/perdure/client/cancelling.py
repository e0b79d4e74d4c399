"""Cancelling a run: a durable request, and the truth about who won.

From the moment that the request is on disk the run can end as cancelled only, whatever it does meanwhile. So who asks
is told at once how it will end, though a run that has begun still cleans up.
"""

from __future__ import annotations

from typing import Final

from perdure.client.connection import Client
from perdure.client.requests import no_run
from perdure.core.errors import printable
from perdure.core.failures import cancellation
from perdure.core.records import RunState, run_id
from perdure.core.states import TERMINAL
from perdure.errors import UsageError
from perdure.runtime.ids import patiently

REASON: Final = "asked for"
"""Why a run was cancelled where nobody said."""

REASON_CHARS_MAX: Final = 1_000


async def cancel(client: Client, run: int, reason: str | None) -> RunState:
    """How the run ends: `cancelled` if this or an earlier request won, else as it had ended before."""
    why = _checked(reason)
    row = await patiently("cancel", lambda: client.store.cancel(run, why, cancellation(why)))
    if row is None:
        raise no_run(run_id(run), client.store.url)
    assert row.state in TERMINAL or row.cancel is not None, f"{run_id(run)} was neither over nor asked to end"
    return row.state if row.state in TERMINAL else RunState.CANCELLED


def _checked(reason: str | None) -> str:
    if reason is None:
        return REASON
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"reason is {reason!r}; say in a few words why the run is cancelled, or leave it out")
    return printable(reason, REASON_CHARS_MAX)
