"""The bench: how fast this machine makes perdure, each number beside the raw limit of the same run.

A number alone says more about the machine than about the library. So every measure is taken together with what the
bare driver does at that moment in the same place: rows a second in batches of a thousand, or one insert and its commit.
The ratio of the two carries over to other machines; the number does not.

**Shape.** `goals` is the table of rows with what is aimed at. `ground` is a place to measure in (a SQLite file, a
schema of a Postgres database), fresh for each measure and removed after it, with its raw limits. The measures are plain
coroutines from a ground to readings (`throughput`, `latency`, `replay`, `growth`, `imports`). `plan` decides what is
measured where, `report` takes medians and judges, `command` shows them.
"""
