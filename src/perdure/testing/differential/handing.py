"""What runs hand over, use and may use, as a worker might say it, and as it had better not; relays, and people who set
budgets or send dead deliveries on.

Bills go to a sink that no relay serves: their numbers are the store's own, and no program can name them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from perdure.core.budgets import Amounts, BudgetFilter, Limits, NewBudget, Spent
from perdure.core.changes import AppendCheckpoint, Change, Deliver, RecordAttempt, Reserve
from perdure.core.deliveries import Billing, ClaimDeliveries, DeliveryFilter, DeliveryState, NewDelivery, Settlement
from perdure.core.limits import LIST_ROWS_MAX, NEVER_US
from perdure.core.meters import UNIT, Meter, UsageBy, UsageFilter
from perdure.core.records import Claimed
from perdure.testing.differential.operations import UNIT_S, Call, Operation, blob
from perdure.testing.differential.sight import Sight

KEYS: Final = ("h", "i", "j")
"""Of steps that hand over, or that reserve; few, so that they are met again, and none of a step's, a wait's or an
effect's."""

SINKS: Final = ("bus", "mail")
BILLS: Final = "bills"
PARTITIONS: Final = ("x", "y")
NAMES: Final = ("agent:ann", "agent:bob", "tenant:acme")
UNKNOWN: Final = 10**15

Record = Callable[[Claimed, int, str], AppendCheckpoint]


class Handing:
    """Draws changes and operations."""

    def __init__(self, source: random.Random, sight: Sight, *, new_id: Callable[[], int], record: Record) -> None:
        self.random = source
        self.sight = sight
        self._new_id = new_id
        self._record = record
        self._tries = 100

    # -- starts ----------------------------------------------------------------------------------------------

    def given(self) -> dict[str, Any]:
        """What a start says of a budget and of a bill."""
        choose = self.random.choice
        return {
            "budget": choose([None, None, None, NewBudget(self._new_id(), "own", self._limits())]),
            "billing": choose([None, None, Billing(BILLS, f"bill {self._new_id()}")]),
        }

    def about(self) -> tuple[int, int] | None:
        """The budget that a question is about, most often as it is."""
        known = self.sight.budgets()
        if not known or self.random.random() < 0.5:
            return None
        id, rev = self.random.choice(known)
        return id, rev - self.random.choice([0, 0, 0, 1])

    # -- changes ---------------------------------------------------------------------------------------------

    def any_kind(self, claimed: Claimed, super_step: int) -> Change:
        """One of these."""
        key, draw = self.random.choice(KEYS), self.random.random()
        if draw < 0.4:
            return self._deliver(claimed, super_step, key)
        if draw < 0.7:
            return self._reserve(claimed, super_step, key)
        if draw < 0.85:
            return self._attempt(claimed, super_step, key)
        return self._measured(claimed, super_step, key)

    def _deliver(self, claimed: Claimed, super_step: int, key: str) -> Deliver:
        choose = self.random.choice
        new = NewDelivery(
            self._new_id(), choose(SINKS), choose(PARTITIONS), f"delivery {self.random.randint(1, 60)}", b"data",
            choose([(), (blob(b"shared"),)]),
        )  # fmt: skip
        record = self._measured(claimed, super_step, key)
        return Deliver(claimed.run, claimed.fence, claimed.thread, super_step, key, record, new)

    def _reserve(self, claimed: Claimed, super_step: int, key: str) -> Reserve:
        amounts = Amounts(tokens=self.random.choice([0, 1, 3, 10]), steps=1)
        at = (claimed.run, claimed.fence, claimed.thread, super_step, key)
        return Reserve(*at, self._some_budgets(), amounts)

    def _measured(self, claimed: Claimed, super_step: int, key: str) -> AppendCheckpoint:
        record = self._record(claimed, super_step, key)
        return msgspec.structs.replace(record, meters=self._meters(), spent=self._spent())

    def _attempt(self, claimed: Claimed, super_step: int, key: str) -> RecordAttempt:
        """The end of a try that nobody has told of."""
        self._tries += 1
        at = (claimed.run, claimed.fence, claimed.thread, super_step, key, self._tries)
        return RecordAttempt(*at, b"boom", 1_000, 2_000, meters=self._meters(), spent=self._spent())

    def _meters(self) -> tuple[Meter, ...]:
        quantity = self.random.choice([1, 5 * UNIT, 9 * 10**18])
        return (Meter("tokens", quantity), Meter("usd", UNIT))[: self.random.choice([0, 1, 2])]

    def _spent(self) -> Spent | None:
        amounts = Amounts(tokens=self.random.choice([0, 2, 8]), steps=1, us=self.random.choice([0, 5]))
        return Spent(self._some_budgets(), amounts) if self.random.random() < 0.7 else None

    def _some_budgets(self) -> tuple[int, ...]:
        known = [id for id, _ in self.sight.budgets()]
        picked = self.random.sample(known, min(len(known), self.random.choice([0, 1, 1, 2, 3])))
        return tuple(sorted([*picked, *([UNKNOWN] if self.random.random() < 0.1 else [])]))

    def _limits(self) -> Limits:
        choose = self.random.choice
        return Limits(tokens=choose([0, 10, 30, 100]), steps=choose([None, None, 3]))

    # -- relays and people -----------------------------------------------------------------------------------

    def relay(self, worker: int, by: str) -> Sequence[Operation]:
        """Whatever there is to do for a relay."""
        if self.sight.deliveries(DeliveryState.DELIVERING) and self.random.random() < 0.6:
            return self.settle(worker, by)
        if any(row.sink in SINKS for row in self.sight.deliveries(DeliveryState.QUEUED)) or self.random.random() < 0.1:
            return self.claim(worker, by)
        return []

    def claim(self, worker: int, by: str) -> Sequence[Operation]:
        choose = self.random.choice
        mine = [row.id for row in self.sight.deliveries(DeliveryState.DELIVERING) if row.worker == worker]
        chance = self.random.random()
        keep = tuple(mine) if chance < 0.8 else ()
        suspects = 2 if chance < 0.1 else 0 if chance > 0.9 else 1
        sinks = tuple((sink, choose([1, 2, *[100] * 4, 0])) for sink in choose([*[SINKS] * 5, SINKS[:1], ("nobody",)]))
        request = ClaimDeliveries(worker, sinks, keep, suspects)
        return [Call("claim_deliveries", (request,), by=by)]

    def settle(self, worker: int, by: str) -> Sequence[Operation]:
        """What came of tries, of this very worker's or, now and then, of anybody's."""
        choose = self.random.choice
        out = self.sight.deliveries(DeliveryState.DELIVERING)
        meddles = self.random.random() < 0.3
        if out and not meddles:
            worker = choose(out).worker or worker
        mine = [row for row in out if meddles or row.worker == worker]
        states = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.QUEUED)
        said = tuple(
            Settlement(
                row.id, row.attempts + choose([*[0] * 12, 1]), choose(states),
                choose([0, 1, 2]) * UNIT_S * 1_000_000, choose([None, "503"]),
            )
            for row in mine
        )  # fmt: skip
        return [Call("settle_deliveries", (worker, said), by=by)]

    def redeliver(self, by: str) -> Sequence[Operation]:
        dead = [row.id for row in self.sight.deliveries(DeliveryState.DEAD)]
        if not dead and self.random.random() < 0.95:
            return []
        others = [row.id for row in self.sight.deliveries() if not row.bill]
        picked = [*self.random.sample(dead, min(len(dead), 2)), self.random.choice([UNKNOWN, *others])]
        return [Call("redeliver", (tuple(picked),), by=by)]

    def set_budget(self, by: str) -> Sequence[Operation]:
        names = [*NAMES, *self.sight.budget_names()]
        new = NewBudget(self._new_id(), self.random.choice(names), self._limits())
        return [Call("set_budget", (new, self.random.choice([None, "ann"])), by=by)]

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, run: int, limit: int, by: str) -> Operation:
        choose = self.random.choice
        deliveries = [row.id for row in self.sight.deliveries() if not row.bill] or [UNKNOWN]
        ids = tuple(id for id, _ in self.sight.budgets()) or (UNKNOWN,)
        calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
            ("deliveries", (self._deliveries(run, limit, deliveries),), {}),
            ("get_deliveries", ((choose(deliveries), UNKNOWN, choose(deliveries)),), {}),
            ("meters", (run,), {"limit": limit, "offset": choose([0, 0, 1, 2])}),
            ("usage", (self._usage(run, limit),), {}),
            ("budgets", (BudgetFilter(choose([None, "agent:", "run:r"]), limit, choose([None, "agent:bob"])),), {}),
            ("get_budgets", ((choose(ids), UNKNOWN, choose(ids)),), {}),
            ("next_delivery", (choose([SINKS, SINKS[:1], ()]),), {"suspects": run % 3 > 0}),
            ("overdue_deliveries", (choose([0, NEVER_US]),), {"limit": LIST_ROWS_MAX}),
        ]
        verb, args, named = choose(calls)
        return Call(verb, args, named, by=by)

    def _deliveries(self, run: int, limit: int, known: Sequence[int]) -> DeliveryFilter:
        choose = self.random.choice
        return DeliveryFilter(
            state=choose([None, None, *DeliveryState]),
            sink=choose([None, *SINKS]),
            partition=choose([None, None, *PARTITIONS]),
            key=choose([None, None, None, "delivery 1"]),
            run=choose([None, None, run]),
            thread_id=choose([None, None, "ann-1"]),
            tenant=choose([None, None, "acme"]),
            bill=False,
            limit=limit,
            after=choose([None, None, choose(known)]),
        )

    def _usage(self, run: int, limit: int) -> UsageFilter:
        choose = self.random.choice
        by = choose([UsageBy.TENANT, UsageBy.AGENT, UsageBy.RUN])
        after: dict[UsageBy, tuple[str | int, str]] = {
            UsageBy.TENANT: ("", "tokens"), UsageBy.AGENT: ("ann", "usd"), UsageBy.RUN: (run, "tokens"),
        }  # fmt: skip
        return UsageFilter(
            by=by,
            name=choose([*[None] * 5, "usd"]),
            tenant=choose([*[None] * 5, "acme"]),
            agent=choose([*[None] * 5, "ann"]),
            run=choose([*[None] * 5, run]),
            after_fence=choose([*[None] * 5, 1]),
            fence=choose([*[None] * 5, 2]),
            limit=limit,
            after=choose([*[None] * 4, after[by]]),
        )
