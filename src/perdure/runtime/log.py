"""The log of a super-step: what it has on record, and what it files. It is closed by the ending.

What is filed goes to the disk in the next commit, in the order in which it was filed; the code does not wait for it,
unless it asks to. Once there is an ending nothing more is filed, and whoever tries is told by `Unwind`.
"""

from __future__ import annotations

import asyncio

from perdure.core.changes import AppendCheckpoint, Change, CommitOutcome
from perdure.core.endings import Ending, HandedBack, Held, Lost, Raised, Returned, why_over
from perdure.core.journal import Journal
from perdure.core.records import Claimed, HeldReason
from perdure.core.snapshot import spill
from perdure.errors import LeaseLost, Unwind
from perdure.runtime.group import Batch
from perdure.runtime.host import Host
from perdure.runtime.metering import NO_USE, Use


class Log:
    """What is on record of one super-step of a claimed run; `after` is what the run has written before it."""

    def __init__(
        self, host: Host, claimed: Claimed, *, number: int, after: Batch[Change, CommitOutcome] | None
    ) -> None:
        resumed = number == claimed.super_step
        self.host = host
        self.claimed = claimed
        self.number = number
        self.ending: Ending | None = None
        """How the super-step ends, once that is known."""
        self.hears_late = True
        """Whether what comes after the ending can still be filed before it."""
        self.journal = Journal(claimed.records, claimed.attempts) if resumed else Journal((), ())
        self._seq = max((record.seq for record in claimed.records), default=0) if resumed else 0
        self._last = after
        """The last that this run has written."""

    def check(self) -> None:
        """Refuse to act once the super-step has ended."""
        if self.ending is not None:
            raise self._unwind()

    def append(
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int, use: Use = NO_USE
    ) -> Batch[Change, CommitOutcome]:
        """Queue a step's record for the next commit."""
        self.check()
        return self.submit(self.record(key, digest, attempt, payload, failed=failed, started_at=started_at, use=use))

    def record(
        self, key: str, digest: int, attempt: int, payload: bytes, *, failed: bool, started_at: int, use: Use = NO_USE
    ) -> AppendCheckpoint:
        """A step's record, to be filed by whoever asks for it."""
        self._seq += 1
        payload, blobs = spill(payload)
        claimed = self.claimed
        return AppendCheckpoint(
            claimed.run, claimed.fence, claimed.thread, self.number, key, self._seq, attempt, digest, failed,
            payload, started_at, self.host.clock.wall_us(), blobs, use.meters, use.spent,
        )  # fmt: skip

    def submit(self, change: Change) -> Batch[Change, CommitOutcome]:
        """Queue a change for the next commit."""
        self.check()
        self._last = self.host.committer.submit(change)
        return self._last

    @property
    def hears(self) -> bool:
        """Whether what a try has used can still be filed: until the ending, or, where the run stays this worker's and
        the store takes what it writes, until that is written."""
        match self.ending:
            case None:
                return True
            case Returned() | Raised() | HandedBack():
                return self.hears_late
            case Held(reason):
                return self.hears_late and reason is not HeldReason.REFUSED
            case _:
                return False

    def submit_late(self, change: Change) -> None:
        """Queue what became of something that was in flight when the super-step ended; before its end is written."""
        if self.hears_late:
            self._last = self.host.committer.submit(change)

    async def durable(self, batch: Batch[Change, CommitOutcome]) -> None:
        """Wait until a batch is on disk; `Unwind` if this run's part of it was not written."""
        await asyncio.shield(batch.done)
        self.check()

    @property
    def last(self) -> Batch[Change, CommitOutcome] | None:
        """The last that it has written."""
        return self._last

    async def flushed(self) -> None:
        """Wait until all that this run has written so far is on disk: before anything leaves the process."""
        if self._last is not None:
            await self.durable(self._last)

    def _unwind(self) -> Unwind:
        return LeaseLost(self._why()) if isinstance(self.ending, Lost) else Unwind(self._why())

    def _why(self) -> str:
        return f"run r{self.claimed.run}: {why_over(self.ending, self.number)}"
