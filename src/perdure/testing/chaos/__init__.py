"""Chaos: real processes on a real store, faults on a schedule, and an independent witness.

**Who takes part.** A `director` starts everything and ends it, by process id. Workers are `perdure worker` with the
agents of `agents`; `client` processes start runs all the time, under keys, and wait for their results. The `recorder`
is a process that nobody harms: it writes what the others tell it into a file of its own, syncs it, and only then lets
them go on. The tormentor (`faults`) kills, stops, drains and cuts, as a seeded schedule says.

**What is told.** Every step body says that it begins and how it ended, with its worker, fence and try; every client
what it asks for, what was acknowledged and which result it was given; the tormentor what it did (`testimony`).

**What is judged.** When the faults have stopped and everything that was hurt has been replaced, every run must become
terminal within a bounded time. Then `reconcile` holds the recorder's file against the store's rows (`books`), rule by
rule. It trusts neither: a run's result must also be what a pure function of its arguments says (`orders`). A repeated
body is excused only if its worker was declared dead, or it was broken off, before its record was on disk.

**How it fails.** A violation is shown with the rows behind it. What goes wrong with chaos itself (a recorder that ends,
a restart command that does not work) is a `ChaosFailed`.
"""
