"""A fork goes on from a checkpoint with what was recorded until then, and leaves what it was made from as it was."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.core.records import Kind
from perdure.core.requests import ForkRun, OtherAgent, Started, StartOutcome, ThreadHeld
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.look import Write


def of_fork(write: Write, annals: Annals) -> Iterator[str]:
    """The new run is there as it was asked for, and no other has changed."""
    if write.verb != "fork" or not write.done:
        return
    ask: ForkRun = write.args[0]
    expected = _expected(write, ask)
    if write.answer != expected:
        yield f"fork to {ask.start.thread_id}: {write.answer}, not {expected}"
    id = ask.start.id
    for each in write.touched:
        if each != id or id in write.before.runs:
            yield f"run r{each} was changed by a fork"
    if isinstance(write.answer, Started) and id not in write.before.runs:
        annals.forks.add(id)
        annals.forked_with[id] = {(row.super_step, row.key) for row in ask.records}
        yield from _of_log(write, ask)


def _expected(write: Write, ask: ForkRun) -> StartOutcome:
    start = ask.start
    if start.id in write.before.runs:
        return Started(start.id, write.before.runs[start.id].thread_id, True)
    thread = write.before.thread_named(start.thread_id)
    if thread is None:
        return Started(start.id, start.thread_id, True)
    if thread.agent != start.agent:
        return OtherAgent(thread.agent)
    return ThreadHeld(thread.head or 0, thread.depth)


def _of_log(write: Write, ask: ForkRun) -> Iterator[str]:
    id = ask.start.id
    run, log = write.now.runs.get(id), write.now.logs.get(id, {})
    if run is None:
        yield f"fork r{id} is not there"
        return
    if run.super_step != ask.super_step or run.attempt or run.fence:
        yield f"fork r{id} begins in super-step {run.super_step}, not {ask.super_step}"
    begins = log.get((ask.super_step, ""))
    if begins is None or begins.kind is not Kind.BOUNDARY or begins.payload != ask.start.payload:
        yield f"fork r{id} begins with other arguments than were asked for"
    elif begins.state != ask.state:
        yield f"fork r{id} begins with another state than was asked for"
    asked = {(row.super_step, row.key): row for row in ask.records}
    if {at: row for at, row in log.items() if at[1]} != asked:
        yield f"fork r{id} has {sorted(at for at in log if at[1])}, and was to have {sorted(asked)}"
