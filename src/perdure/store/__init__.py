"""Where perdure remembers. `open_url` turns a store's address into a store; `protocol.py` says what one does.

A driver is imported when its address is first used, so that a program on SQLite never loads one for Postgres.
"""

from __future__ import annotations

import difflib
import os
from os import PathLike
from typing import Any, Final

from perdure.core.shown import did_you_mean, shown
from perdure.errors import UsageError
from perdure.store.protocol import Hint, Store

__all__ = ["Hint", "Store", "open_url", "store_at"]

FORMS: Final = (
    ("sqlite", "sqlite:///runs.db (a path from here) or sqlite:////var/lib/runs.db (from the root)"),
    ("postgresql", "postgresql://user@host/database"),
    ("memory", "memory:// (of its own) or memory://name (shared in this process)"),
)
"""The addresses there are, with an example of each."""

SQLITE_OPTIONS: Final = {"synchronous": ("full", "normal", "extra", "off")}
"""What may follow a `?`, with its values: SQLite's own words."""

_ALIASES: Final = {"postgres": "postgresql", "sqlite3": "sqlite", "pg": "postgresql", "psql": "postgresql"}
_named: Final[dict[str, Store]] = {}


def open_url(url: str) -> Store:
    """The store at this address, not yet open. Raises `UsageError` for an address that names none."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise _unknown(url)
    match scheme.lower():
        case "memory":
            return _memory(rest)
        case "sqlite":
            return _sqlite(rest, url)
        case "postgresql" | "postgres":
            return _postgres(url)
        case _:
            raise _unknown(url)


def store_at(where: str | PathLike[str] | Store) -> tuple[str, Store]:
    """The address and the store that somebody means, by its address, by the path of a SQLite file, or by itself."""
    if isinstance(where, PathLike):
        from urllib.parse import quote

        where = f"sqlite:///{quote(os.fsdecode(where))}"
    if isinstance(where, str):
        return where, open_url(where)
    if not isinstance(getattr(where, "url", None), str) or not hasattr(where, "clone"):
        raise UsageError(
            f"{shown(where)} is no store; give an address, such as 'sqlite:///runs.db', the path of a SQLite file, or "
            "a Store"
        )
    return where.url, where


def _memory(name: str) -> Store:
    """One store for each name in this process; without a name, one that nobody else has."""
    from perdure.store.memory import MemoryStore

    if not name:
        return MemoryStore()
    return _named.setdefault(name, MemoryStore.named(name)).clone()


def _sqlite(rest: str, url: str) -> Store:
    """`/path` is relative and `//path` absolute; what follows `?` goes to the store as keyword arguments."""
    path, _, query = rest.partition("?")
    if not path.startswith("/") or path == "/":
        raise UsageError(
            f"{url!r} names no file: write three slashes before a path from here (sqlite:///runs.db), "
            "four before one from the root (sqlite:////var/lib/runs.db).",
            url=url,
        )
    from urllib.parse import parse_qsl, unquote

    from perdure.store.sqlite import SQLiteStore

    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in options.items():
        _check_option(name, value, url=url)
    return SQLiteStore(unquote(path[1:]), **options)


def _check_option(name: str, value: str, *, url: str) -> None:
    if name not in SQLITE_OPTIONS:
        known = ", ".join(SQLITE_OPTIONS)
        raise UsageError(
            f"{url!r}: there is no option {name!r}{did_you_mean(name, SQLITE_OPTIONS)}; there is: {known}."
        )
    if value not in SQLITE_OPTIONS[name]:
        known = ", ".join(SQLITE_OPTIONS[name])
        raise UsageError(
            f"{url!r}: {name} cannot be {value!r}{did_you_mean(value, SQLITE_OPTIONS[name])}; it is {known}."
        )


def _postgres(url: str) -> Store:
    try:
        from perdure.store.postgres import PostgresStore
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "asyncpg":
            raise
        raise UsageError(
            "A postgresql:// store needs the driver asyncpg: pip install 'perdure[postgres]'.", missing="asyncpg"
        ) from error
    return PostgresStore(url)


def _unknown(url: str) -> UsageError:
    """An error that lists the valid forms and, for a slip of the pen, the nearest. Never shows a password."""
    scheme = url.partition(":")[0] if ":" in url else ""
    public = f"{scheme}:…" if scheme else url
    names = [name for name, _ in FORMS]
    guess = f" Did you mean {_ALIASES[scheme.lower()]}://?" if scheme.lower() in _ALIASES else ""
    if not guess and (near := difflib.get_close_matches(scheme.lower(), names, n=1)):
        guess = f" Did you mean {near[0]}://?"
    forms = "".join(f"\n  {form};" for _, form in FORMS).rstrip(";")
    return UsageError(f"{public!r} is no address of a store.{guess} An address is one of:{forms}.", url=public)
