"""The store in memory: the reference meaning of every verb, for tests and for looking around.

Plain dictionaries of the same frozen rows that the other stores return, behind one lock. `tables.py` has the rows and
the few moves between them, `commits.py` applies batches, `starts.py` and `forks.py` begin runs, `reading.py` lists;
`waits.py`, `questions.py`, `mail.py` and `cancelling.py` have what runs wait for and how that ends, `effects.py` what
they do to the world, `operating.py` what people ask of them; `outbox.py`, `meters.py` and `budgets.py` (with
`accounts.py`) have what they hand over, use and may use; `store.py`, `waiting.py`, `ledger.py` and `handing.py` have
the verbs. All clones of a store share its tables, on any event loop and in any thread of this process; the data end
with the last of them.

A batch is atomic because it is judged before it is applied: whatever can be refused is refused before the first row
changes. Nothing here is optimised beyond what tests need: a claim looks at every run that waits.
"""

from __future__ import annotations

from perdure.store.memory.store import MemoryStore

__all__ = ["MemoryStore"]
