"""Rehearsal: your own agents in a world of their own, in virtual time, with faults where you want them.

    from perdure.testing import crash_after, fail_step, rehearse

    with rehearse(app, crash_after("search"), fail_step("charge", ConnectionError("no route"))) as stage:
        assert stage.run(order, "tea") == "receipt 1"
        assert stage.count("search") == 1

The app's own agents are executed by the real runtime, on a store in memory; nothing of it touches the app's own store.
A fault names a step and a moment. `crash_after` ends the worker's process as `kill -9` would, and another one goes on.
Virtual time passes only when everybody waits, and then at once: a retry in an hour takes no time, a sleep of a month
neither. Questions are answered by `stage.answer`, or by nobody until they expire.

`faults.py` has the words, `cast.py` the apps and agents, `rehearsal.py` the world (on `perdure.testing.simulation`) and
`backstage.py` what it stands on; `alarm.py` wakes workers for what becomes due, `calls.py` sees what agents wait for,
`beside.py` what undoes their effects, `handing.py` what their sinks get, `books.py` what their transactions write;
`people.py` who answers, `standing.py` says what did not end.
"""

from __future__ import annotations

from perdure.testing.rehearsal.calls import Waited
from perdure.testing.rehearsal.faults import (
    Fault,
    answer_step,
    crash_after,
    crash_before,
    crash_in,
    fail_step,
    slow_step,
)
from perdure.testing.rehearsal.handing import HandedOver
from perdure.testing.rehearsal.rehearsal import Execution, Rehearsal, rehearse
from perdure.testing.rehearsal.standing import NeverEnded

__all__ = [
    "Execution",
    "Fault",
    "HandedOver",
    "NeverEnded",
    "Rehearsal",
    "Waited",
    "answer_step",
    "crash_after",
    "crash_before",
    "crash_in",
    "fail_step",
    "rehearse",
    "slow_step",
]
