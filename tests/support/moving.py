"""Agents of the crash tests of transactions: each moves money between accounts in the store's own database, and may die
at the point that it is told.

The points, in order: before the transaction (`before`); in it, before its SQL (`begun`) and after it (`written`); when
it has committed (`committed`).
"""

from __future__ import annotations

import os

import perdure
from perdure import App, Retry, Transaction
from tests.support.charging import die_at

POINTS = ("before", "begun", "written", "committed")

TABLE = "PERDURE_TEST_TABLE"
"""The environment's name for the user's own table."""


@perdure.transaction(retry=Retry(attempts=10, delay_s=0.05), timeout=None)
async def move(tx: Transaction, who: str, number: int, point: str = "") -> int:
    """Write a line of the account, and read how many it has."""
    die_at("begun", who, point)
    table = os.environ[TABLE]
    one, two = ("$1", "$2") if tx.dialect == "postgresql" else ("?", "?")
    changed = await tx.execute(f"insert into {table} (who, number) values ({one}, {two})", who, number)
    assert changed == 1
    die_at("written", who, point)
    count: int = await tx.fetch_value(f"select count(*) from {table} where who = {one}", who)
    return count


async def moving(who: str, point: str = "") -> list[int]:
    """Three moves; the second is the one at which something dies."""
    counts = []
    for number in range(3):
        here = point if number == 1 else ""
        die_at("before", who, here)
        counts.append(await move(who, number, here))
        die_at("committed", who, here)
    return counts


def app_on(store: str | None = None) -> App:
    """The app, on a store."""
    made = App("moving", store=store)
    made.agent(moving)
    return made


if "PERDURE_STORE" in os.environ:
    app = app_on()
