"""What may become of a run's log: rows are added, by commits; a record never changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from perdure.core.changes import place_of, record_of
from perdure.core.records import Kind
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Log, Write

ADDS: Final = frozenset({"commit", "start", "cancel", "fork"})
"""The verbs that add to logs; a start and a cancellation may end runs that nobody has to clean up after."""


def of_logs(write: Write, annals: Annals) -> Iterator[str]:
    """The logs that differ, and their runs."""
    _remember_bounces(write, annals)
    for id in write.touched:
        yield from _of_log(write, annals, id, write.before.logs.get(id, {}), write.now.logs.get(id, {}))


def _of_log(write: Write, annals: Annals, id: int, before: Log, now: Log) -> Iterator[str]:
    verb, name, run = write.verb, f"run r{id}", write.now.runs[id]
    dropped = write.dropped_keys(id)
    for at, row in before.items():
        if at not in now:
            gone = (row.failed and row.key in dropped) or (row.kind is Kind.ENDED and verb == "retry")
            if not gone:
                yield f"{name}: record {at} has vanished by {verb}"
        elif now[at] != row:
            yield f"{name}: record {at} has changed by {verb}"
    added = now.keys() - before.keys()
    if added and verb not in ADDS:
        yield f"{name}: records {sorted(added)} came by {verb}"
    if verb != "fork":
        yield from _of_order(annals, id, before, now)
    if run.state in TERMINAL and (run.super_step + 1, "") not in now:
        yield f"{name} is {run.state} without an end in its log"
    if run.state not in TERMINAL and any(row.kind is Kind.ENDED for row in now.values()):
        yield f"{name} is {run.state} and has an end in its log"
    if (run.super_step, "") not in now:
        yield f"{name} is in super-step {run.super_step}, which has no beginning in its log"
    if max((super_step for super_step, key in now if key), default=0) > run.super_step:
        yield f"{name} is in super-step {run.super_step}, and its log has steps of a later one"


def _remember_bounces(write: Write, annals: Annals) -> None:
    """The numbers of records that were not written, though their run was in order: they leave gaps."""
    bounced = write.answer.bounced if write.verb == "commit" and write.done else {}
    for change in write.changes:
        record = record_of(change)
        if record is not None and bounced and place_of(change) in bounced:
            annals.bounced.add((record.run, record.super_step, record.seq))


def _of_order(annals: Annals, id: int, before: Log, now: Log) -> Iterator[str]:
    """A log has no gaps: what a claim recorded later is not there without what it recorded earlier. But what bounced
    may be written when its batch is sent again."""
    added: dict[int, list[int]] = {}
    for at in now.keys() - before.keys():
        if now[at].kind is Kind.STEP:
            added.setdefault(at[0], []).append(now[at].seq)
    for super_step, numbers in sorted(added.items()):
        last = max((row.seq for at, row in before.items() if at[0] == super_step), default=0)
        numbers = [n for n in numbers if n > last or (id, super_step, n) not in annals.bounced]
        all_of_them = range(last + 1, max(numbers, default=last) + 1)
        expected = [n for n in all_of_them if (id, super_step, n) not in annals.bounced]
        if sorted(numbers) != expected and not set(expected) <= set(numbers) <= set(all_of_them):
            yield f"run r{id}: after number {last} of super-step {super_step} came {sorted(numbers)}"
