"""Calls of verbs that are recorded: a sleep, a question, a message, a child.

They go as steps go. A call has a key, by its name and its place; where a record is under that key, the call is
replayed, and where there is none it acts, and files one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from perdure.core.changes import AppendCheckpoint, Change
from perdure.core.codec import codec_for
from perdure.core.digests import digest64
from perdure.core.failures import encode_error, error_info, failure
from perdure.core.records import Checkpoint, run_id
from perdure.core.requests import Bounce
from perdure.core.snapshot import spilled
from perdure.errors import NotSerializable
from perdure.runtime.frames import agent_frame

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep

NOTHING = codec_for(type(None)).encode(None)
"""The record of a call that returns None."""


class Call:
    """One call of a verb in agent code."""

    def __init__(self, at: SuperStep, key: str, digest: int, record: Checkpoint | None) -> None:
        self.at = at
        self.key = key
        self.record = record
        """What it did before; None if it is to act."""
        self._digest = digest
        self._whole = b""
        """The payload of its record, before that was spilled."""
        self.started_at = at.host.clock.wall_us()

    @classmethod
    async def of(cls, verb: str, name: str, args: tuple[Any, ...] | None = None, *, enters: bool = False) -> Call:
        """The call that is being made: its record, or leave to act. `args` are what a replay must repeat; None where
        nobody looks. One that `enters` a block does not wait for the turn of its record, which says how it was left;
        and where it was entered before, it is entered."""
        frame = agent_frame(verb)
        at = frame.super_step
        await at.enter()
        key = frame.scope.key(name)
        digest = 0 if args is None else digest64((args, {}))
        record = at.recorded(key, digest, args or (), {})
        call = cls(at, key, digest, record)
        if enters and (record is not None or at.waiting_for(key)):
            return call
        if record is not None:
            if not at.turns.comes(record.seq):
                await at.turns.stand(record.seq)
        else:
            with call.waiting():  # it may have waited before, in another worker's hands
                await at.fresh()
                if at.host.committer.is_full:
                    await at.host.committer.room()
                    at.check()
        return call

    def result(self, payload: bytes) -> AppendCheckpoint:
        """The record of a result."""
        return self._file(payload, failed=False)

    def failed(self, error: Exception) -> AppendCheckpoint:
        """The record of a failure, which `raised` raises."""
        return self._file(encode_error(error_info(error)), failed=True)

    def raised(self, record: AppendCheckpoint) -> Exception:
        """A recorded failure as its replay will raise it."""
        return failure(self._whole, run=record.run, key=record.key, attempts=1)

    async def made(self, record: AppendCheckpoint, decode: Callable[[bytes], Any]) -> Any:
        """What this call's record says, as its replay will: the value, or the failure, raised."""
        if record.failed:
            raise self.raised(record)
        whole = self._whole if spilled(self._whole) is None else await self.at.load(self._whole)
        self.at.check()
        try:
            return decode(whole)
        except NotSerializable as error:
            self.at.hold_unreadable(self.key, error)

    async def done(self, change: Change) -> Bounce | None:
        """Wait until this is on disk; why it was not written, where that depends on others."""
        batch = self.at.submit(change)
        await self.at.kept(batch)
        return batch.done.result().bounced.get((change.run, self.at.number, self.key))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A block that waits under this call's key: where agent code cancels it, the wait is withdrawn."""
        try:
            yield
        except asyncio.CancelledError:
            self.at.waiting.withdraw(self.key)
            raise

    def __str__(self) -> str:
        return f"{self.key!r} of run {run_id(self.at.claimed.run)}"

    def _file(self, payload: bytes, *, failed: bool) -> AppendCheckpoint:
        self._whole = payload
        return self.at.record(self.key, self._digest, 1, payload, failed=failed, started_at=self.started_at)
