"""The store on Postgres keeps every promise of the conformance suite."""

from __future__ import annotations

import asyncpg
import pytest

from perdure.core.limits import NEVER_US
from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from perdure.testing.conformance import StoreConformance
from tests.support import postgres

pytestmark = pytest.mark.postgres

COMPARED = (
    ("workers", "lease_until"),
    ("runs", "ready_at"),
    ("runs", "deadline_at"),
    ("waits", "due_at"),
    ("interrupts", "expires_at"),
    ("messages", "taken_at"),
    ("deliveries", "due_at"),
)
"""The times that are compared with the server's clock."""


class TestPostgresStore(StoreConformance):
    def store(self) -> Store:
        self.url = postgres.common_url()
        return PostgresStore(self.url)

    async def open_store(self) -> Store:
        store = await super().open_store()
        await postgres.empty(self.url)
        return store

    async def advance_s(self, store: Store, seconds: float) -> None:
        """The server's clock stays as it is: every time that is compared with it moves back."""
        schema = self.url.rpartition("=")[2]
        connection = await asyncpg.connect(self.url.rpartition("&")[0])
        try:
            for table, column in COMPARED:
                await connection.execute(
                    f"update {schema}.{table} set {column} = {column} - {int(seconds * 1_000_000)} "
                    f"where {column} <> {NEVER_US}"
                )
        finally:
            await connection.close()
