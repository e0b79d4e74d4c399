"""Changes by which a run waits, sends and parks, as a worker might send them, and as it had better not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from perdure.core.changes import (
    AppendCheckpoint,
    BuryMessage,
    Change,
    CloseWait,
    NewInterrupt,
    OpenWait,
    ParkRun,
    SendMessage,
)
from perdure.core.keys import budget_place
from perdure.core.records import Blob, Claimed, WaitKind
from perdure.core.requests import NewMessage
from perdure.testing.differential.operations import UNIT_S, blob
from perdure.testing.differential.sight import Sight

KEYS: Final = ("w", "x", "y/1")
"""Of waits; few, so that they collide."""

LABELS: Final = ("note", "order")
BEYOND: Final = (blob(b"beyond"),)
"""What comes with a question, or with a message that has a key. Nobody compares it: whether it is kept where the
question, or that key, is there already is nobody's business."""

PAST: Final = 1
"""A time that has come, whatever the clock says."""

Record = Callable[[Claimed, int, str], AppendCheckpoint]


class Pauses:
    """Draws waits and what ends them, and messages."""

    def __init__(
        self,
        source: random.Random,
        sight: Sight,
        *,
        new_id: Callable[[], int],
        record: Record,
        blobs: tuple[Blob, ...],
        about: Callable[[], tuple[int, int] | None],
    ) -> None:
        self.random = source
        self.sight = sight
        self._new_id = new_id
        self._record = record
        self._blobs = blobs
        self._about = about

    def open(self, claimed: Claimed, super_step: int, key: str) -> OpenWait:
        """A wait of any kind."""
        choose = self.random.choice
        at = (claimed.run, claimed.fence, claimed.thread, super_step, key)
        delay_us = choose([None, None, 0, 1, 2, 5])
        delay_us = None if delay_us is None else delay_us * UNIT_S * 1_000_000
        due_at = choose([None, None, None, None, PAST])
        match choose([*WaitKind, *[WaitKind.ANSWER] * 3, WaitKind.MESSAGE]):
            case WaitKind.TIMER:
                return OpenWait(*at, WaitKind.TIMER, delay_us=delay_us or UNIT_S * 1_000_000, due_at=due_at)
            case WaitKind.ANSWER:
                asked = self._question()
                if asked.budget is not None:  # such a question has a place of its own
                    at = (*at[:4], budget_place(*asked.budget))
                return OpenWait(
                    *at, WaitKind.ANSWER, delay_us=delay_us, due_at=due_at, interrupt=asked, blobs=BEYOND,
                )  # fmt: skip
            case WaitKind.MESSAGE:
                labels = choose([(), (), LABELS, LABELS[:1]])
                return OpenWait(*at, WaitKind.MESSAGE, delay_us=delay_us, due_at=due_at, labels=labels)
            case WaitKind.RUN:
                others = [run for run in self.sight.runs() if run != claimed.run]
                return OpenWait(*at, WaitKind.RUN, target=choose(others) if others else self._new_id())
            case _:
                return OpenWait(*at, WaitKind.ROOM, target=self._thread())

    def close(self, claimed: Claimed, super_step: int, key: str) -> CloseWait:
        """The end of a wait, or of none."""
        choose = self.random.choice
        record = self._record(claimed, super_step, key) if self.random.random() < 0.7 else None
        take = self._seq(claimed) if record is not None and self.random.random() < 0.35 else None
        return CloseWait(
            claimed.run, claimed.fence, claimed.thread, super_step, key, record, take,
            expired=take is None and choose([False, True]),
        )  # fmt: skip

    def send(self, claimed: Claimed, super_step: int, key: str) -> SendMessage:
        """A message to a thread, now and then to none."""
        return SendMessage(
            claimed.run, claimed.fence, claimed.thread, super_step, key, self._record(claimed, super_step, key),
            self.message(sender=f"r{claimed.run}"),
        )  # fmt: skip

    def message(self, sender: str = "") -> NewMessage:
        """A new message."""
        choose = self.random.choice
        names = dict(self.sight.threads())
        thread_id = names[self._thread()] if names and self.random.random() < 0.9 else "nobody"
        number = self._new_id()
        blobs, key = choose([(), self._blobs]), choose([*[None] * 6, "k1", "k2"])
        return NewMessage(
            number, thread_id, sender, choose(LABELS), f"message {number}".encode(),
            BEYOND if blobs and key is not None else blobs, key,
        )  # fmt: skip

    def bury(self, claimed: Claimed) -> BuryMessage:
        """A message that cannot be received, or is not there."""
        return BuryMessage(claimed.run, claimed.fence, claimed.thread, self._seq(claimed), "it does not load")

    def park(self, claimed: Claimed) -> ParkRun:
        """The end of a slice that only waits. Most often it knows whether it was cancelled."""
        row = self.sight.run(claimed.run)
        knows = row is not None and row.cancel is not None
        return ParkRun(
            claimed.run, claimed.fence, claimed.thread, knows if self.random.random() < 0.8 else not knows
        )  # fmt: skip

    def any_kind(self, claimed: Claimed, super_step: int) -> Change:
        """One of these."""
        key, draw = self.random.choice(KEYS), self.random.random()
        if draw < 0.3:
            return self.open(claimed, super_step, key)
        if draw < 0.6:
            return self.close(claimed, super_step, key)
        if draw < 0.75:
            return self.send(claimed, super_step, key)
        return self.bury(claimed) if draw < 0.85 else self.park(claimed)

    def waiting(self, claimed: Claimed, super_step: int) -> Change:
        """What a run does that waits, but for parking."""
        known = [wait.key for wait in self.sight.waits(claimed.run)]
        draw, key = self.random.random(), self.random.choice(KEYS)
        if known and draw < 0.3:
            return self.close(claimed, super_step, self.random.choice(known))
        if draw < 0.8:
            return self.open(claimed, super_step, key)
        if draw < 0.9:
            return self.send(claimed, super_step, self.random.choice((*KEYS, "s")))
        buries = draw > 0.95 or (draw > 0.92 and bool(self.sight.mail(claimed.thread)))
        return self.bury(claimed) if buries else self.close(claimed, super_step, key)

    def _question(self) -> NewInterrupt:
        choose = self.random.choice
        number = self._new_id()
        return NewInterrupt(
            number, choose(["approve", "which"]), f"question {number}".encode(), choose([None, b'{"type":"boolean"}']),
            f"{number:032x}", choose(["raise", "cancel", "default"]), choose([None, "ann", "ben"]), self._about(),
        )  # fmt: skip

    def _thread(self) -> int:
        """A thread, most often the one with the most mail: mailboxes are to be full at times."""
        threads = [number for number, _ in self.sight.threads()]
        if self.random.random() < 0.4:
            return self.random.choice(threads)
        return max(threads, key=lambda number: len(self.sight.mail(number)))

    def _seq(self, claimed: Claimed) -> int:
        there = self.sight.mail(claimed.thread)
        return self.random.choice(there) if there and self.random.random() < 0.9 else self.random.randint(1, 9)
