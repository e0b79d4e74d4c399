"""The outbox: every write makes of it what a model of a few lines makes of it, and nothing else.

A delivery comes with the record that asked for it, or, a bill, with the end of its run; goes through relays' hands one
after the other of its lane; and is there once for its sink and key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from perdure.core import limits
from perdure.core.changes import Deliver
from perdure.core.deliveries import OPEN, ClaimDeliveries, Delivery, DeliveryState, Settlement
from perdure.core.records import Run
from perdure.core.states import TERMINAL
from perdure.testing.simulation.rules.annals import Annals
from perdure.testing.simulation.rules.batches import turns
from perdure.testing.simulation.rules.look import Deliveries, Look, Write

Lane = tuple[str, str]


def of_outbox(write: Write, annals: Annals) -> Iterator[str]:
    """What each row may have become."""
    _remember_billing(write, annals)
    before, now = write.before.deliveries, write.now.deliveries
    if now is before and not _concerns(write):
        return
    model = Model(write, annals)
    yield from model.apply()
    for id in sorted(before.keys() - now.keys()):
        yield f"delivery d{id} has vanished by {write.verb}"
    for id, row in now.items():
        expected = model.rows.get(id)
        if expected is None:
            yield f"delivery d{id} ({row.key!r} to {row.sink} of run r{row.run}) came by {write.verb}"
        elif expected != row:
            yield f"delivery d{id} became {_differs(expected, row)} by {write.verb}"
    for id in sorted(model.rows.keys() - now.keys() - before.keys()):
        yield f"delivery d{id} ({model.rows[id].key!r}) was asked for, and is not there"
    if write.now.deliveries is not before:
        yield from _of_keys(write.now)


def _concerns(write: Write) -> bool:
    """Whether this writes to the outbox: hands over, or ends a run."""
    if any(isinstance(change, Deliver) for change in write.changes):
        return True
    ended = (id for id in write.touched if write.now.runs[id].state in TERMINAL)
    return any((was := write.before.runs.get(id)) is None or was.state not in TERMINAL for id in ended)


def _differs(expected: Delivery, row: Delivery) -> str:
    wrong = [each for each in row.__struct_fields__ if getattr(row, each) != getattr(expected, each)]
    return ", ".join(f"{each} {getattr(row, each)!r}, not {getattr(expected, each)!r}" for each in wrong)


def _of_keys(look: Look) -> Iterator[str]:
    keys = [(row.sink, row.key) for row in look.deliveries.values()]
    if len(set(keys)) < len(keys):
        yield f"two deliveries have one key: {sorted(each for each in set(keys) if keys.count(each) > 1)}"


def _remember_billing(write: Write, annals: Annals) -> None:
    asked = write.args[0] if write.verb == "start" else [write.args[0].start] if write.verb == "fork" else ()
    for ask in asked:
        if ask.billing is not None and ask.id in write.now.runs and ask.id not in write.before.runs:
            annals.billing[ask.id] = ask.billing


class Model:
    """The outbox while one write is done."""

    def __init__(self, write: Write, annals: Annals) -> None:
        self.write = write
        self.annals = annals
        self.rows: Deliveries = dict(write.before.deliveries)
        self._keys = {(row.sink, row.key) for row in self.rows.values()}

    def apply(self) -> Iterator[str]:
        """Do what was asked, and say what of the answer does not fit."""
        write = self.write
        if write.done:
            match write.verb:
                case "commit":
                    yield from self._hand_over()
                case "claim_deliveries":
                    yield from self._claim(write.args[0], write.answer)
                case "settle_deliveries":
                    for each in write.args[1]:
                        self._settle(write.args[0], each)
                case "redeliver":
                    for id in write.args[0]:
                        self._redeliver(id)
                case "take_over":
                    for taken in write.answer:
                        self._give_back(taken.worker, struck=True)
                case "retire" if write.before.alive(write.args[0]):
                    self._give_back(write.args[0])
                case _:
                    """It has nothing to do with it, but for the ends of runs."""
        yield from self._bill()
        self._give_turns()

    # -- what runs write -------------------------------------------------------------------------------------

    def _hand_over(self) -> Iterator[str]:
        for change, why in turns(self.write):
            if not isinstance(change, Deliver):
                continue
            new, lane = change.delivery, (change.delivery.sink, change.delivery.partition)
            known = (new.sink, new.key) in self._keys
            full = not known and len(self._open(lane)) >= limits.LANE_MAX
            if full != (why is not None):
                yield f"run r{change.run} was told of its delivery {new.key!r}: {why}; {len(self._open(lane))} wait"
            if why is None and not known:
                self._keys.add((new.sink, new.key))
                run = self.write.before.runs[change.run]
                self.rows[new.id] = self._new(new.id, run, new.sink, new.partition, new.key, new.payload, change.fence)

    def _bill(self) -> Iterator[str]:
        """One for every closing of a run that is billed; where several close at once, in any order."""
        made: list[tuple[int, Delivery, Run]] = []
        for id in self.write.touched:
            was, run, billing = self.write.before.runs.get(id), self.write.now.runs[id], self.annals.billing.get(id)
            over = run.state in TERMINAL and (was is None or was.state not in TERMINAL)
            if not over or billing is None:
                continue
            number = sum(row.bill and row.run == id for row in self.write.before.deliveries.values()) + 1
            this = billing.sink, billing.key if number == 1 else f"{billing.key}:{number}"
            found = [row for row in self.write.now.deliveries.values() if (row.sink, row.key) == this]
            if len(found) == 1:
                made.append((found[0].seq, found[0], run))
            else:
                yield f"run r{id} has ended as {run.state}, and has {len(found)} bills for that"
        for _, row, run in sorted(made, key=lambda each: each[0]):
            content = run.state.value.encode("ascii")
            new = self._new(row.id, run, row.sink, run.thread_id, row.key, content, run.fence, bill=True)
            self.rows[row.id] = new

    def _new(
        self, id: int, run: Run, sink: str, partition: str, key: str, payload: bytes, fence: int, *, bill: bool = False
    ) -> Delivery:  # fmt: skip
        return Delivery(
            id=id, run=run.id, thread=run.thread, thread_id=run.thread_id, agent=run.agent, tenant=run.tenant,
            sink=sink, partition=partition, seq=self._next_seq((sink, partition)), key=key, bill=bill, fence=fence,
            payload=payload, state=DeliveryState.QUEUED, ready=False, attempts=0, strikes=0,
            due_at=self.write.now_us, created_at=self.write.now_us, settled_at=None, error=None, worker=None,
        )  # fmt: skip

    # -- what relays and people do ---------------------------------------------------------------------------

    def _claim(self, request: ClaimDeliveries, claimed: Sequence[Delivery]) -> Iterator[str]:
        if not self.write.before.alive(request.worker):
            yield from () if not claimed else [f"w{request.worker} is not alive, and claimed deliveries"]
            return
        self._give_back(request.worker, keep=request.keep)
        self._give_turns()
        due = sorted(
            (row for row in self.rows.values() if row.ready and self._is_due(row)), key=lambda row: (row.due_at, row.id)
        )
        sinks = {sink for sink, limit in request.sinks if limit > 0}
        suspects = [row for row in due if row.suspect and row.sink in sinks][: request.suspects]
        for sink, limit in request.sinks:
            sound = [row for row in due if not row.suspect]
            ids = [row.id for row in [*suspects, *sound] if row.sink == sink]
            taken = {row.id for row in claimed if row.sink == sink}
            if taken != set(ids[:limit]):
                yield f"w{request.worker} claimed {sorted(taken)} of {sink}; due are {ids}, {limit}"
        for each in claimed:
            row = self.rows[each.id]
            worker, attempts = request.worker, row.attempts + 1
            self.rows[row.id] = replace(row, state=DeliveryState.DELIVERING, worker=worker, attempts=attempts)
            self.annals.handed[row.id, attempts, worker] += 1
            if self.write.now.deliveries.get(each.id) != each:
                yield f"w{worker} was given delivery d{each.id} otherwise than it is"
        held = [row.id for row in self.rows.values() if row.suspect and row.worker == request.worker]
        if len(held) > 1:
            yield f"w{request.worker} has suspects {held} in its hands at the same time"

    def _is_due(self, row: Delivery) -> bool:
        return row.state is DeliveryState.QUEUED and row.due_at <= self.write.now_us

    def _settle(self, worker: int, said: Settlement) -> None:
        row = self.rows.get(said.delivery)
        if row is None or (row.state, row.worker, row.attempts) != (DeliveryState.DELIVERING, worker, said.attempt):
            return
        due_at = self.write.now_us + said.delay_us if said.state is DeliveryState.QUEUED else row.due_at
        error = None if said.state is DeliveryState.DELIVERED else said.error
        self.rows[row.id] = replace(
            row,
            state=said.state,
            worker=None,
            settled_at=self.write.now_us,
            error=error,
            due_at=due_at,
            strikes=0,
        )

    def _give_back(self, worker: int, *, keep: Sequence[int] = (), struck: bool = False) -> None:
        for row in list(self.rows.values()):
            if row.worker == worker and row.id not in keep:
                now, strikes = self.write.now_us, row.strikes + struck
                self.rows[row.id] = replace(row, state=DeliveryState.QUEUED, worker=None, due_at=now, strikes=strikes)

    def _redeliver(self, id: int) -> None:
        row = self.rows.get(id)
        if row is not None and row.state is DeliveryState.DEAD:
            seq = self._next_seq((row.sink, row.partition))
            now = self.write.now_us
            self.rows[id] = replace(
                row, state=DeliveryState.QUEUED, attempts=0, strikes=0, due_at=now, seq=seq, worker=None
            )

    # -- lanes -----------------------------------------------------------------------------------------------

    def _open(self, lane: Lane) -> list[Delivery]:
        return [row for row in self.rows.values() if (row.sink, row.partition) == lane and row.state in OPEN]

    def _next_seq(self, lane: Lane) -> int:
        last = self.annals.lanes[lane] = self.annals.lanes.get(lane, 0) + 1
        return last

    def _give_turns(self) -> None:
        """Of each lane the first that is open is ready, and it alone."""
        heads: dict[Lane, Delivery] = {}
        for row in self.rows.values():
            lane = row.sink, row.partition
            if row.state in OPEN and (lane not in heads or row.seq < heads[lane].seq):
                heads[lane] = row
        for row in list(self.rows.values()):
            ready = heads.get((row.sink, row.partition)) is row
            if row.ready != ready:
                self.rows[row.id] = replace(row, ready=ready)
