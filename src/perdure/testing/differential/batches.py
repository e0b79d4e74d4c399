"""Batches of changes, as a worker might send them, and as it had better not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from perdure.core.changes import (
    AppendCheckpoint,
    BeginSuperStep,
    Change,
    CloseWait,
    Deliver,
    EndRun,
    HoldRun,
    IntendEffect,
    OpenWait,
    ParkRun,
    Place,
    RecordAttempt,
    RequeueRun,
    Reserve,
    SendMessage,
    SettleEffect,
    record_of,
)
from perdure.core.records import Claimed, HeldReason, RunState
from perdure.testing.differential.deeds import Deeds
from perdure.testing.differential.handing import Handing
from perdure.testing.differential.operations import UNIT_S, blob
from perdure.testing.differential.pauses import Pauses
from perdure.testing.differential.sight import Sight

KEYS: Final = ("a", "b", "c", "d", "e/1")
"""Of steps; few, so that they collide. `c` and `d` always fail."""

FAILING: Final = ("c", "d")

ACTS: Final = 0.32
"""How often a slice is about an effect only."""

UNIVERSE: Final = tuple(blob(data) for data in (b"shared", b"1", b"2", *(key.encode() for key in KEYS)))
"""Every blob there is."""


class Batches:
    """Draws changes."""

    def __init__(self, source: random.Random, sight: Sight, *, new_id: Callable[[], int]) -> None:
        self.random = source
        self.sight = sight
        self.handing = Handing(source, sight, new_id=new_id, record=self._step)
        self.pauses = Pauses(
            source, sight, new_id=new_id, record=self._step, blobs=(blob(b"shared"),), about=self.handing.about
        )
        self.deeds = Deeds(source, sight, new_id=new_id, record=self._step)
        self._seq = 0
        self._opened: set[int] = set()
        """Runs that have opened waits, perhaps."""

    def slice(self, claimed: Claimed, super_step: int) -> list[Change]:
        """What an execution of a run might send, in an order it might send it in. Now and then it goes on after it has
        said that it ended, or records a step twice. Whoever acts may say no more until he has heard."""
        if self.random.random() < ACTS:
            return [self.deeds.any_kind(claimed, super_step)]
        changes: list[Change] = []
        careless = self.random.random() < 0.15
        taken: set[tuple[int, str]] = set()
        for _ in range(self.random.randint(0, 5)):
            key = self.random.choice(KEYS)
            draw = self.random.random()
            if draw < 0.12:
                super_step += 1
                changes.append(self._boundary(claimed, super_step))
            elif draw < 0.25:
                changes.append(self._attempt(claimed, super_step, key))
            elif draw < 0.6:
                changes.append(self._waiting(claimed, super_step))
            elif draw < 0.65:
                changes.append(self.deeds.any_kind(claimed, super_step))
            elif draw < 0.8:
                changes.append(self.handing.any_kind(claimed, super_step))
            elif careless or (super_step, key) not in taken:
                taken.add((super_step, key))
                changes.append(self._step(claimed, super_step, key))
        changes += self._ending(claimed, super_step)
        if careless:
            changes.append(self.any_kind(claimed, super_step, run=claimed.run, fence=claimed.fence))
        return changes

    def any_kind(self, claimed: Claimed, super_step: int, *, run: int, fence: int) -> Change:
        """One change of any kind, under this run and fence."""
        key = self.random.choice(KEYS)
        kinds: tuple[Change, ...] = (
            self._step(claimed, super_step, key),
            self._attempt(claimed, super_step, key),
            self._boundary(claimed, super_step + 1),
            self._end(claimed, super_step, RunState.COMPLETED),
            self._requeue(claimed),
            self._hold(claimed),
            *(self._any_pause(claimed, super_step) for _ in range(4)),
            *(self.deeds.any_kind(claimed, super_step) for _ in range(2)),
            self.handing.any_kind(claimed, super_step),
        )
        return moved(self.random.choice(kinds), run=run, fence=fence)

    def mixed(self, parts: Sequence[list[Change]]) -> list[Change]:
        """The runs' changes between each other, each run's own in order."""
        waiting = [list(part) for part in parts]
        found: list[Change] = []
        while waiting := [part for part in waiting if part]:
            found.append(self.random.choice(waiting).pop(0))
        return found

    # -- the kinds -------------------------------------------------------------------------------------------

    def _waiting(self, claimed: Claimed, super_step: int) -> Change:
        self._opened.add(claimed.run)
        return self.pauses.waiting(claimed, super_step)

    def _any_pause(self, claimed: Claimed, super_step: int) -> Change:
        self._opened.add(claimed.run)
        return self.pauses.any_kind(claimed, super_step)

    def _ending(self, claimed: Claimed, super_step: int) -> list[Change]:
        if claimed.run in self._opened and self.random.random() < 0.6:
            return [self.pauses.park(claimed)]
        draw = self.random.random()
        if draw < 0.15:
            return [self._end(claimed, super_step, RunState.COMPLETED)]
        if draw < 0.3:
            return [self._end(claimed, super_step, RunState.FAILED)]
        if draw < 0.35:
            return [self._end(claimed, super_step, RunState.CANCELLED)]
        if draw < 0.45:
            return [self._requeue(claimed)]
        return [self._hold(claimed)] if draw < 0.55 else []

    def _step(self, claimed: Claimed, super_step: int, key: str) -> AppendCheckpoint:
        self._seq += 1
        return AppendCheckpoint(
            run=claimed.run,
            fence=claimed.fence,
            thread=claimed.thread,
            super_step=super_step,
            key=key,
            seq=self._seq,
            attempt=self.random.randint(1, 3),
            digest=self.random.choice([0, 7, -7]),
            failed=key in FAILING,
            payload=f"{key} {self._seq}".encode(),
            started_at=1_000,
            ended_at=2_000,
            blobs=self.random.choice([(), (), (blob(key.encode()), blob(b"shared"))]),
        )

    def _attempt(self, claimed: Claimed, super_step: int, key: str) -> RecordAttempt:
        error, ended_at = self.random.choice([(None, None), (b"boom", 2_000)])
        number = self.random.randint(1, 2)
        at = (claimed.run, claimed.fence, claimed.thread, super_step, key, number)
        return RecordAttempt(*at, error=error, started_at=1_000, ended_at=ended_at)

    def _boundary(self, claimed: Claimed, super_step: int) -> BeginSuperStep:
        at = (claimed.run, claimed.fence, claimed.thread, super_step)
        shared = (blob(b"shared"),)
        waited = self._waited(claimed)
        return BeginSuperStep(*at, b"again", state=self._state(), ended_at=3_000, blobs=shared, waited=waited)

    def _end(self, claimed: Claimed, super_step: int, outcome: RunState) -> EndRun:
        at = (claimed.run, claimed.fence, claimed.thread, super_step + 1)
        state = self._state() if outcome is RunState.COMPLETED else None
        payload, waited = outcome.value.encode(), self._waited(claimed)
        return EndRun(*at, outcome=outcome, payload=payload, state=state, ended_at=4_000, waited=waited)

    def _waited(self, claimed: Claimed) -> bool:
        """Whether there may be waits to close; a worker that has opened some says so."""
        waited = claimed.run in self._opened or self.sight.has_waited(claimed.run)
        return waited or self.random.random() < 0.3

    def _requeue(self, claimed: Claimed) -> RequeueRun:
        delay_us = self.random.choice([0, 0, 1]) * UNIT_S * 1_000_000
        keys = tuple(self.random.sample(KEYS, self.random.choice([0, 2, 4])))
        return RequeueRun(claimed.run, claimed.fence, claimed.thread, delay_us, keys)

    def _hold(self, claimed: Claimed) -> HoldRun:
        reason = self.random.choice(list(HeldReason))
        return HoldRun(claimed.run, claimed.fence, claimed.thread, reason, "look at it")

    def _state(self) -> bytes | None:
        self._seq += 1
        return f"state {self._seq}".encode() if self.random.random() < 0.7 else None


def moved(change: Change, *, run: int, fence: int) -> Change:
    """The same change of another run, or under another fence; its record goes along."""
    if isinstance(change, CloseWait | SendMessage | SettleEffect | Deliver) and change.record is not None:
        record = msgspec.structs.replace(change.record, run=run, fence=fence)
        return msgspec.structs.replace(change, run=run, fence=fence, record=record)
    return msgspec.structs.replace(change, run=run, fence=fence)


def plain(changes: Sequence[Change]) -> list[Change]:
    """The batch without what no worker sends, or of which nothing is said: a wait that is opened under the key of a
    record beside it, or closed a second time, what else is said of an effect that is intended, and a parking beside a
    run that hands over and ends (who waits for that is not parked, or is woken)."""
    recorded: set[Place] = set()
    closed: set[Place] = set()
    found: list[Change] = []
    hands_over = any(isinstance(change, Deliver) for change in changes)
    for change in Deeds.plain([each for each in changes if not (hands_over and isinstance(each, ParkRun))]):
        if isinstance(change, OpenWait | CloseWait):
            place = change.run, change.super_step, change.key
            if place in (recorded if isinstance(change, OpenWait) else closed):
                continue
            closed |= {place} if isinstance(change, CloseWait) else set()
        if (record := record_of(change)) is not None:
            recorded.add((record.run, record.super_step, record.key))
        found.append(change)
    return found


def apart(strays: Sequence[Change], mine: Sequence[Change]) -> list[Change]:
    """The strays, one of a run, without those that may bounce, or may not fit an effect, of runs that the batch is
    about anyway: a change that both bounces and comes too late may be told as either. And without waits that these
    open: their own changes do not know that there is something to close."""
    runs = {change.run for change in mine}
    either = CloseWait | SendMessage | IntendEffect | SettleEffect | Deliver | Reserve | OpenWait
    alone = {change.run: change for change in reversed(strays)}
    return [each for each in alone.values() if each.run not in runs or not isinstance(each, either)]
