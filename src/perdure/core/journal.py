"""The journal: what a super-step has recorded, looked up by key.

A step whose key is here returns its record; any other step is fresh. (In which order the records come back is another
matter: `runtime/turns.py`.) A record carries
the digest of its arguments, so a key that comes back with other arguments is seen (`Mismatch`) instead of being
answered with somebody else's result.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.keys import is_beside
from perdure.core.records import Attempt, Checkpoint


class Journal:
    """The records and unfinished tries of one super-step, as they were when the run was claimed."""

    __slots__ = ("_records", "_tries")

    def __init__(self, records: Iterable[Checkpoint], attempts: Iterable[Attempt]) -> None:
        self._records = {record.key: record for record in records if not is_beside(record.key)}
        self._tries = {attempt.key: attempt for attempt in attempts}  # they come by key and number: the last one stays

    def __len__(self) -> int:
        return len(self._records)

    def places(self) -> Iterable[int]:
        """Where in the log the records are."""
        return (record.seq for record in self._records.values())

    def find(self, key: str) -> Checkpoint | None:
        """The record under this key, if there is one."""
        return self._records.get(key)

    def last_try(self, key: str) -> Attempt | None:
        """The latest try of the step under this key, if one has begun or failed without becoming its record."""
        return self._tries.get(key)


def matches(record: Checkpoint, digest: int) -> bool:
    """Whether a step reached with arguments of this digest is the one recorded; 0 means that nobody looked."""
    return record.digest == digest or record.digest == 0 or digest == 0
