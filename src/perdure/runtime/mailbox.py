"""A thread's mailbox, as the run that owns the thread reads it: in order, each message by one branch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from perdure.core.changes import BuryMessage
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import Message, message_id, run_id
from perdure.runtime.patience import outlast
from perdure.telemetry import emit

if TYPE_CHECKING:
    from perdure.runtime.superstep import SuperStep


class Mailbox:
    """What has been read and not been taken, and how far the reading has come. New messages come at the end."""

    def __init__(self, at: SuperStep) -> None:
        self._at = at
        self._unread: dict[int, Message] = {}
        self._read = 0
        self._in_hand: set[int] = set()
        """Taken, and not out of the mailbox yet: for the store they are still there."""
        self._looking = asyncio.Lock()
        self._looks = 0
        """Reads that have begun."""
        self._moved: list[asyncio.Future[None]] = []
        self._begun = at.number == at.claimed.super_step

    async def next(self, labels: tuple[str, ...]) -> Message | None:
        """Take the oldest message with one of these labels (none: any); None if there is none."""
        while True:
            for message in self._unread.values():
                if not labels or message.label in labels:
                    self._in_hand.add(message.seq)
                    return self._unread.pop(message.seq)
            if not await self._more():
                return None

    def put_back(self, message: Message) -> None:
        """Nobody received it after all."""
        self._unread = dict(sorted({**self._unread, message.seq: message}.items()))
        self.gone(message)

    def gone(self, message: Message) -> None:
        """It is in nobody's hands any more."""
        self._in_hand.discard(message.seq)
        moved, self._moved = self._moved, []
        for future in moved:
            if not future.done():
                future.set_result(None)

    async def quiet(self) -> bool:
        """Wait until one that is in a hand has moved; True at once where none is. To wait in the store for what is in
        another branch's hand would be over at once: there it still is."""
        if not self._in_hand:
            return True
        here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._moved.append(here)
        await here
        return False

    def bury(self, message: Message, why: str) -> None:
        """Put a message that nobody can receive as it is among the dead letters."""
        claimed = self._at.claimed
        emit("message.dead", run=run_id(claimed.run), message=message_id(message.id), why=why)
        batch = self._at.submit(BuryMessage(claimed.run, claimed.fence, claimed.thread, message.seq, why))
        batch.done.add_done_callback(lambda _: self.gone(message))

    async def _more(self) -> bool:
        """Read on; whether there was something. One read that begins now does for all the branches that ask."""
        at, looks, read = self._at, self._looks, self._read
        async with self._looking:
            if self._looks > looks:
                return self._read > read
            if not self._begun:
                await at.flushed()  # what the super-step before has taken is out of it then
                self._begun = True
            self._looks += 1
            after = self._read  # a read that had begun before may have come in
            page = await outlast(
                "mailbox", lambda: at.host.store.mailbox(at.claimed.thread, limit=LIST_ROWS_MAX, after=after)
            )
            for message in page:
                self._read = message.seq
                self._unread[message.seq] = message
            return bool(page)
