"""Cancelling a run: a durable request, and the truth about who won.

From the moment that the request is on disk the run can end as cancelled only, whatever it does meanwhile. So who asks
is told at once how it will end, though a run that has begun still cleans up.
"""

from __future__ import annotations

from typing import Final

from perdure.client.connection import Client
from perdure.client.requests import no_run
from perdure.core.failures import cancellation
from perdure.core.records import RunState, run_id
from perdure.core.states import TERMINAL
from perdure.runtime.patience import patiently
from perdure.runtime.starting import checked_reason

REASON: Final = "asked for"
"""Why a run was cancelled where nobody said."""


async def cancel(client: Client, run: int, reason: str | None) -> RunState:
    """How the run ends: `cancelled` if this or an earlier request won, else as it had ended before."""
    why = REASON if reason is None else checked_reason(reason)
    row = await patiently("cancel", lambda: client.store.cancel(run, why, cancellation(why)))
    if row is None:
        raise no_run(run_id(run), client.store.url)
    assert row.state in TERMINAL or row.cancel is not None, f"{run_id(run)} was neither over nor asked to end"
    return row.state if row.state in TERMINAL else RunState.CANCELLED
