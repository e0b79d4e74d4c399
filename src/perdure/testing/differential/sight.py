"""What the reference holds at a moment, so that what is drawn next means something."""

from __future__ import annotations

from perdure.core.deliveries import Delivery, DeliveryFilter, DeliveryState
from perdure.core.effects import Effect
from perdure.core.limits import LIST_ROWS_MAX
from perdure.core.records import InterruptState, Run, RunState, Wait
from perdure.store.memory.tables import Tables


class Sight:
    """Looks into the tables of a store in memory."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def threads(self) -> list[tuple[int, str]]:
        """Every thread, by number and name."""
        return [(row.id, row.thread_id) for row in self._tables.threads.values()]

    def run(self, run: int) -> Run | None:
        """A run's row."""
        return self._tables.runs.get(run)

    def runs(self, *states: RunState) -> list[int]:
        """The runs in one of these states; of any without one."""
        return [row.id for row in self._tables.runs.values() if not states or row.state in states]

    def waits(self, run: int) -> list[Wait]:
        """What a run waits for in its current super-step."""
        row = self._tables.runs.get(run)
        waits = self._tables.waits.get(run, {}).values()
        return [wait for wait in waits if row is not None and wait.super_step == row.super_step]

    def has_waited(self, run: int) -> bool:
        """Whether a run has waits, or has asked something."""
        return bool(self._tables.waits.get(run) or self._tables.asked.get(run))

    def effects_of(self, run: int) -> list[Effect]:
        """A run's effects, as they were written."""
        return [self._tables.effects[each].row for each in self._tables.ledger.get(run, {}).values()]

    def effect_at(self, run: int, super_step: int, key: str) -> Effect | None:
        """The effect under this key, if there is one."""
        known = self._tables.ledger.get(run, {}).get((super_step, key))
        return None if known is None else self._tables.effects[known].row

    def deliveries(self, *states: DeliveryState) -> list[Delivery]:
        """The deliveries in one of these states; all without one."""
        rows = self._tables.outbox.page(DeliveryFilter(limit=LIST_ROWS_MAX))
        return [row for row in rows if not states or row.state in states]

    def budgets(self) -> list[tuple[int, int]]:
        """Every budget, and how often it was set."""
        return [(row.id, row.rev) for row in self._tables.accounts.rows.values()]

    def budget_names(self) -> list[str]:
        return list(self._tables.accounts.by_name)

    def questions(self, *states: InterruptState) -> list[int]:
        """The questions in one of these states; all without one."""
        return [row.id for row in self._tables.interrupts.values() if not states or row.state in states]

    def mail(self, thread: int) -> list[int]:
        """What lies in a mailbox."""
        return list(self._tables.mail.get(thread, {}))

    def dead_letters(self) -> list[int]:
        """Messages that nobody could receive."""
        return list(self._tables.dead_letters)
