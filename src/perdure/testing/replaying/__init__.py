"""Replaying: what a run did in production, held against the code of today.

`record_history` takes a run out of its store: the arguments and the state of each super-step, every record, every
try, how it ended. `replay` executes the agent's current code of every super-step on it, without a store and without
one step's body: a step on record returns its record, by the code that does it in production (`runtime/superstep.py`).
What comes out is a `Replayed`, which says where the code and the record part: which step would hold a run like this as
diverged, what does not load any more, what would run now that is not on record, what nobody asks for any more, and
whether results, next arguments and states are still the recorded ones.

The agent's own code does run, in virtual time (`timeless.py`): what it waits for besides steps takes no time, and what
it asks of its app, of the network or of other processes ends the replay of that super-step.

(Replaying recorded histories as a gate before a deploy is Temporal's idea. Its replayer compares the order of events;
here there is no order to compare, only keys and arguments.)
"""

from __future__ import annotations

from perdure.testing.replaying.history import History, IncompleteHistory, read_history, record_history
from perdure.testing.replaying.playing import replay
from perdure.testing.replaying.report import Difference, Finding, Replayed

__all__ = [
    "Difference",
    "Finding",
    "History",
    "IncompleteHistory",
    "Replayed",
    "read_history",
    "record_history",
    "replay",
]
