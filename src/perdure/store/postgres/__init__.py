"""The store on Postgres, for a fleet. Needs the extra `perdure[postgres]`; `store.py` has the overview."""

from __future__ import annotations

from perdure.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
