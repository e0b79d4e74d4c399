"""The store on one SQLite file, for one machine and any number of its processes."""

from __future__ import annotations

from perdure.store.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
