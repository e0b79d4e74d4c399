"""The store on Postgres keeps every promise of the conformance suite."""

from __future__ import annotations

import asyncpg
import pytest

from perdure.store.postgres import PostgresStore
from perdure.store.protocol import Store
from perdure.testing.conformance import StoreConformance
from tests.support import postgres

pytestmark = pytest.mark.postgres


class TestPostgresStore(StoreConformance):
    def store(self) -> Store:
        self.url = postgres.shared().fresh_url()
        return PostgresStore(self.url)

    async def advance_s(self, store: Store, seconds: float) -> None:
        """The server's clock stays as it is: every time that is compared with it moves back."""
        schema = self.url.rpartition("=")[2]
        connection = await asyncpg.connect(self.url.rpartition("&")[0])
        try:
            for table, column in (("workers", "lease_until"), ("runs", "ready_at")):
                await connection.execute(
                    f"update {schema}.{table} set {column} = {column} - {int(seconds * 1_000_000)}"
                )
        finally:
            await connection.close()
