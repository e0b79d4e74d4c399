"""Evidence that is sound: a recorder's file and a SQLite store that some runs have left, to plant violations in."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from perdure.core.records import RunState
from perdure.store import open_url
from perdure.testing.chaos import agents
from perdure.testing.chaos.account import account_of
from perdure.testing.chaos.agents import app_on
from perdure.testing.chaos.books import read_books
from perdure.testing.chaos.case import Case, Rule
from perdure.testing.chaos.client import Client, Settings
from perdure.testing.chaos.fleet import Brief, Fleet
from perdure.testing.chaos.orders import Order
from perdure.testing.chaos.reconcile import reconcile
from perdure.testing.chaos.testimony import read

NAME: Final = "x"

SEQUENCE, FAN, LEDGER, LATER, FAILED = (f"{NAME}/1/{nth}" for nth in range(1, 6))
"""The keys of the runs that there are."""

ORDERS: Final = (
    Order(SEQUENCE, "1", 1, "sequence", (1,)),
    Order(FAN, "1", 2, "fan", (2,)),
    Order(LEDGER, "1", 3, "ledger", (3, 2, 0), thread_id="x/0"),
    Order(LATER, "1", 4, "ledger", (4, 1, 0), thread_id="x/0"),
    Order(FAILED, "1", 5, "stumbling", (5,)),
)

Line = dict[str, Any]


class Evidence:
    """A recorder's file and a store, which a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def testimony(self) -> Path:
        return self.folder / "testimony.jsonl"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'runs.db'}"

    # -- changing --------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """What was told."""
        return [json.loads(line) for line in self.testimony.read_text("utf-8").splitlines()]

    def tell(self, what: str, **fields: Any) -> None:
        """Have something told besides."""
        line = {"what": what, "pid": 1, "mono": 1e9, **fields}
        with self.testimony.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def edit(self, change: Callable[[Line], Line | None]) -> None:
        """Change what was told; None is forgotten."""
        kept = [after for line in self.lines if (after := change(line)) is not None]
        self.testimony.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")

    def forget(self, what: str, **fields: Any) -> None:
        """Forget the last line of that kind with these fields."""
        last = self.last(what, **fields)
        self.edit(lambda line: None if line == last else line)

    def last(self, what: str, **fields: Any) -> Line:
        """The last line of that kind with these fields."""
        return [line for line in self.lines if line["what"] == what and fields.items() <= line.items()][-1]

    def sql(self, statement: str, **arguments: Any) -> None:
        """Change rows behind the store's back."""
        with closing(sqlite3.connect(self.folder / "runs.db")) as connection, connection:
            connection.execute(statement, arguments)

    def run(self, key: str) -> int:
        """The run that a key stands for."""
        number: int = self.last("started", key=key)["run"]
        return number

    # -- judging ---------------------------------------------------------------------------------------------

    def case(self) -> Case:
        """The case as it stands now."""

        async def gather() -> Case:
            store = open_url(self.url)
            await store.open()
            try:
                async with app_on(self.url) as app:
                    return Case(account_of(read(self.testimony)), await read_books(store, app, NAME))
            finally:
                await store.close()

        return asyncio.run(gather())

    def broken(self) -> set[Rule]:
        """The rules that are broken."""
        return {violation.rule for violation in reconcile(self.case())}


def leave_evidence(folder: Path) -> None:
    """Play the orders with a real recorder; the main function of a process of its own."""
    agents.THINK_MS, agents.LONG_SHARE = (0, 1), 0.0  # type: ignore[misc]
    asyncio.run(_play(Evidence(folder)))


async def _play(evidence: Evidence) -> None:
    brief = Brief(evidence.url, NAME, evidence.folder, seed=1, lease_s=30, at_once=1, pause_s=0)
    fleet = Fleet(brief)
    await fleet.start_recorder()
    try:
        async with app_on(evidence.url) as app, app.worker(deployment="one", queues=[NAME], poll_s=0.05):
            client = Client(app, Settings(1, NAME, "1", str(brief.testimony), 1, 0))
            for order in ORDERS:
                await client._see_through(order)
            assert {run.state for run in await app.runs()} == {RunState.COMPLETED, RunState.FAILED}
    finally:
        fleet.kill_all()
