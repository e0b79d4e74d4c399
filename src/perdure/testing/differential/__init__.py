"""Differential testing: one seeded program gives the same visible history on every store.

A store has three implementations and one meaning. The conformance suite says what somebody thought of; this looks for
what nobody did. From a seed comes a program, a list of frozen operations, at one of two levels: the verbs of a store
(`author.py`), or an app with a worker and a handful of agents on it (`playwright.py`). Each store is told the program
by itself. After every operation its answer is kept, and now and then everything that can be read. The lists must be
equal but for what differs by right (`answers.py`: times, the app's ids, addresses).

Where they are not, the program is made shorter for as long as it still tells the stores apart, and printed. Such a
difference is a bug of one of the stores, or something that `store/protocol.py` does not say; either way it ends as a
scenario of the conformance suite.

    python -m perdure.testing.differential --seeds 1000 --stores memory,sqlite,postgresql://user@host/database

Time is a program's own: stores whose clock can be given have one that moves at each look and jumps where the program
says; on Postgres the rows' times move back instead. Whatever a store decides by is in units of a thousand seconds, so
that no answer depends on how fast it came. What runs at once is not looked at here: that is the simulator's.

The idea of comparing implementations on random programs is old (McKeeman, "Differential testing for software", 1998);
making a failing program small by leaving parts out is Zeller and Hildebrandt's delta debugging.
"""

from __future__ import annotations

from perdure.testing.differential.comparing import Difference, compare, shrink
from perdure.testing.differential.grounds import MemoryGround, PostgresGround, SQLiteGround, ground_of
from perdure.testing.differential.search import APP, STORE, Level, differ, shortened

__all__ = [
    "APP",
    "STORE",
    "Difference",
    "Level",
    "MemoryGround",
    "PostgresGround",
    "SQLiteGround",
    "compare",
    "differ",
    "ground_of",
    "shortened",
    "shrink",
]
