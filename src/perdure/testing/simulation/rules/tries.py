"""What may become of the tries of a run's steps: they come by commits and are bounded, and those that were cut short go
when the run is sent on in good order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from perdure.core.changes import RecordAttempt
from perdure.testing.simulation.rules.look import Tries, Write


def of_tries(write: Write, steps: Mapping[str, int], agents: Callable[[str], int]) -> Iterator[str]:
    """The tries that differ. `steps` and `agents` say how many tries their policies allow."""
    for id in write.touched:
        before, now = write.before.tries.get(id, {}), write.now.tries.get(id, {})
        if before is now:
            continue
        yield from _gone(write, id, before, now)
        yield from _come(write, id, before, now)
        for super_step, key, number in sorted(now.keys() - before.keys()):
            allowed = steps.get(step_of(key), 0) if key else agents(write.now.runs[id].agent)
            if number > allowed:
                yield f"run r{id}: try {number} of {key!r} in super-step {super_step}, for {allowed} allowed tries"


def step_of(key: str) -> str:
    """The name of the step under a key."""
    return key.rpartition("/")[2].partition("#")[0]


def _gone(write: Write, id: int, before: Tries, now: Tries) -> Iterator[str]:
    dropped = write.dropped_keys(id)
    for at in sorted(before.keys() - now.keys()):
        cut_short = before[at].error is None and write.sends_on(id)
        if at[0] != write.now.runs[id].super_step or not (cut_short or at[1] in dropped):
            yield f"run r{id}: try {at} has vanished by {write.verb}"
    left = [at for at, row in now.items() if row.error is None and at[0] == write.now.runs[id].super_step]
    if left and write.done and write.sends_on(id) and write.now.runs[id].worker is None:
        if write.before.runs[id] != write.now.runs[id]:
            yield f"run r{id} was sent on by {write.verb} with tries that were cut short: {sorted(left)}"


def _come(write: Write, id: int, before: Tries, now: Tries) -> Iterator[str]:
    asked = {
        (each.super_step, each.key, each.attempt, each.error)
        for each in write.changes
        if isinstance(each, RecordAttempt) and each.run == id
    }
    for at, row in now.items():
        if row != before.get(at) and (*at, row.error) not in asked:
            yield f"run r{id}: try {at} came or changed by {write.verb}"
        if row.error is None and at in before and before[at].error is not None:
            yield f"run r{id}: try {at} had ended, and nobody knows how any more"
