"""When a run was parked because its budget was spent. Pure.

Such a parking leaves no record, not even that of a wait: only its question, and that the next claim's fence is one
higher. So it is told where a question was asked before, and closed between, the last thing that one claim has done and
the first that the next one has begun; where a fence is more than one higher, only if there is a question for each claim
in between. (A claim that ends with its worker's death raises the fence by two.) What cannot be told so is not told.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from perdure.cli.budget_words import Budgets, about, closed_at, payload_of
from perdure.core.records import Interrupt, InterruptState

_CLOSED: Final = (InterruptState.ANSWERED, InterruptState.WITHDRAWN)


class BudgetStops:
    """Of one super-step, the questions about budgets for which its run may have been parked."""

    def __init__(self, asked: Sequence[Interrupt], budgets: Budgets, clocks_us: int) -> None:
        self._left = sorted((row for row in asked if about(row) and row.state in _CLOSED), key=lambda row: row.id)
        self._budgets = budgets
        self._clocks_us = clocks_us

    def between(self, *, claims: int, worked_at: int, begun: int | None, done: Collection[str]) -> list[Interrupt]:
        """The questions for which it was parked, one for each of so many claims; none where that is not sure.

        `worked_at`: when the claim before last recorded something; `begun`: when the next one began something, None for
        by now; `done`: the steps recorded by then. Whoever has got its budget has not waited for it any more.
        """
        some = [row for row in self._left if self._may_be(row, worked_at, begun, done)]
        if claims < 1 or not some or (claims > 1 and not self._one_each(some, claims)):
            return []
        self._left = [row for row in self._left if row not in some]
        return some if claims > 1 else some[-1:]

    def is_left(self, *, worked_at: int, begun: int | None, done: Collection[str]) -> bool:
        """Whether it may have been parked for one then, though that is not sure."""
        return any(self._may_be(row, worked_at, begun, done) for row in self._left)

    def until(self, row: Interrupt) -> int | None:
        """When the question was closed, as far as that is known."""
        return closed_at(row, self._budgets)

    def _may_be(self, row: Interrupt, worked_at: int, begun: int | None, done: Collection[str]) -> bool:
        closed = self.until(row)
        if payload_of(row).get("step") in done:
            return False
        if begun is not None and max(row.created_at, closed or 0) > begun + self._clocks_us:
            return False
        return closed is None or closed >= worked_at - self._clocks_us

    def _one_each(self, some: Sequence[Interrupt], claims: int) -> bool:
        """Whether there is one for each claim, asked after the one before was closed."""
        ends = [self.until(row) for row in some]
        return len(some) == claims and all(
            end is None or end <= after.created_at + self._clocks_us for end, after in zip(ends, some[1:], strict=False)
        )
