"""The billing ledger: it has the meters of the tries that are on record, each once, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from perdure.core.changes import AppendCheckpoint, RecordAttempt
from perdure.core.meters import Meter, MeterRow, billionths
from perdure.testing.simulation.rules.annals import Annals, At
from perdure.testing.simulation.rules.batches import effective, tried
from perdure.testing.simulation.rules.look import Write
from perdure.testing.simulation.rules.tries import step_of

BY_AGENTS: Final = "meter"
"""What a use that agent code notes is called."""


CANCELLED: Final = re.compile(r"(.*)~\d+\+cancelled@\d+")
"""Where something files what a try has used that its own code has cancelled, and that has no record: the step's key."""


def of_meters(write: Write, annals: Annals) -> Iterator[str]:
    """What has come, and that the rest is as it was."""
    expected = {run: dict(rows) for run, rows in write.before.meters.items()}
    for change in effective(write):
        said = tried(change)
        if said is None:
            continue
        fresh = _file(expected.setdefault(said.run, {}), said, write.now_us) if said.meters else False
        yield from _of_try(annals, said, fresh=fresh)
    for run in sorted(expected.keys() | write.now.meters.keys()):
        there, known = write.now.meters.get(run, {}), expected.get(run, {})
        if there != known:
            more, less = sorted(there.keys() - known.keys()), sorted(known.keys() - there.keys())
            yield f"run r{run}: by {write.verb} it has meters {more} too many, and lacks {less}"


def _file(rows: dict[At, MeterRow], said: AppendCheckpoint | RecordAttempt, now_us: int) -> bool:
    """Note what a try has used, unless that is noted."""
    if (said.super_step, said.key, said.attempt, said.fence, 0) in rows:
        return False
    for number, each in enumerate(said.meters):
        at = said.super_step, said.key, said.attempt, said.fence, number
        rows[at] = MeterRow(said.run, *at, each.name, each.quantity, each.attributes, now_us)
    return True


def _of_try(annals: Annals, said: AppendCheckpoint | RecordAttempt, *, fresh: bool) -> Iterator[str]:
    """What a try is said to have used is what its body has used; an effect's says so once for several."""
    cut_short = CANCELLED.fullmatch(said.key)
    at = said.run, said.fence, said.super_step, cut_short[1] if cut_short is not None else said.key
    ahead = isinstance(said, RecordAttempt) and said.error is None
    if ahead or step_of(said.key) == BY_AGENTS or (said.meters and not fresh):
        return
    noted = annals.metered.get(at, {})
    tries = [n for n in noted if n == said.attempt or at in annals.of_effects]
    used = [Meter(name, billionths(quantity)) for n in sorted(tries) for name, quantity in noted.pop(n)]
    if [(each.name, each.quantity) for each in said.meters] != [(each.name, each.quantity) for each in used]:
        name = f"run r{said.run}: try {said.attempt} of {said.key!r}"
        what = ", ".join(f"{each.name} {each.quantity}" for each in said.meters)
        yield f"{name} has used {used}, and {what or 'nothing'} is on record"
