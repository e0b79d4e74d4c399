"""The schema: its version, its migrations and the functions that belong to it.

`migrations/` are numbered and run once. `functions/` are installed anew by every migration, so they always are those
of the newest version; a process that is older keeps working as long as a function's arguments stay as they are, and a
function whose arguments change gets another name. All of it is one transaction under one lock, so any number of
processes may start on an empty database at once.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

import asyncpg

from perdure.errors import SchemaAhead, SchemaOutdated
from perdure.store.postgres.address import Address
from perdure.store.postgres.lines import Line
from perdure.store.sql import Dialect, Migration, Statements, load, load_migrations, translate

LOCK: Final = 1885692004
"""Class number of the advisory lock under which the schema changes."""
MIGRATE_TIMEOUT_S: Final = 3600.0


@cache
def dialect(prefix: str) -> Dialect:
    return Dialect(name="postgres", prefix=prefix, positional=True)


@cache
def statements(prefix: str) -> Statements:
    """The statements, with the schema's name in place."""
    return load(dialect(prefix))


@cache
def migrations(prefix: str) -> tuple[Migration, ...]:
    return load_migrations(dialect(prefix))


@cache
def functions(prefix: str) -> tuple[str, ...]:
    """What `functions/` defines."""
    directory = files("perdure.store.postgres").joinpath("functions")
    found = sorted((each for each in directory.iterdir() if each.name.endswith(".sql")), key=lambda each: each.name)
    texts = (translate(each.read_text(encoding="utf-8"), dialect(prefix))[0] for each in found)
    return tuple(in_strings(text, prefix) for text in texts)


def in_strings(text: str, prefix: str) -> str:
    """Put the schema's name in place inside strings too: the sequence, the channel of the hints."""
    return text.replace("'perdure.", f"'{prefix}")


async def version(line: Line, address: Address) -> int:
    """The version found in the database; 0 where there is none."""
    return await line.use(lambda connection: _version(connection, address))


async def check(line: Line, address: Address) -> int:
    """See that the schema is this code's. Returns its version, or 0 where it has yet to be made."""
    newest = len(migrations(address.prefix))
    found = await version(line, address)
    ids = {"url": address.public, "found": found, "wanted": newest}
    if found != 0 and found < newest:
        remedy = "Run `perdure migrate`"
        raise SchemaOutdated(f"{address.public} has schema {found}, this perdure needs {newest}. {remedy}.", **ids)
    if found > newest:
        remedy = "Upgrade this process"
        raise SchemaAhead(f"{address.public} has schema {found}, this perdure knows {newest}. {remedy}.", **ids)
    return found


async def migrate(line: Line, address: Address) -> tuple[int, int]:
    """Bring the schema up to date in one transaction; the versions before and after."""
    return await line.use(lambda connection: _migrate(connection, address))


async def _migrate(connection: asyncpg.Connection[Any], address: Address) -> tuple[int, int]:
    wanted = migrations(address.prefix)
    async with connection.transaction():
        lock = "select pg_advisory_xact_lock($1, hashtext($2))"
        await connection.execute(lock, LOCK, address.schema, timeout=MIGRATE_TIMEOUT_S)
        before = await _version(connection, address)
        if before > len(wanted):
            return before, before
        for migration in wanted[before:]:
            if migration.version == 1 and not await _is_there(connection, address):
                await connection.execute(f'create schema if not exists "{address.schema}"')
            await connection.execute(migration.text, timeout=MIGRATE_TIMEOUT_S)
        for text in functions(address.prefix):
            await connection.execute(text, timeout=MIGRATE_TIMEOUT_S)
        await connection.execute(in_strings(statements(address.prefix)["fix_plans"].text, address.prefix))
        await connection.execute(statements(address.prefix)["set_version"].text, len(wanted))
        return before, len(wanted)


async def _version(connection: asyncpg.Connection[Any], address: Address) -> int:
    if not await connection.fetchval(statements(address.prefix)["has_schema"].text, address.schema):
        return 0
    found: int | None = await connection.fetchval(statements(address.prefix)["get_version"].text)
    return found or 0


async def _is_there(connection: asyncpg.Connection[Any], address: Address) -> bool:
    """Whether somebody has made the schema, empty. To make one that is there takes the right to make it."""
    found: bool = await connection.fetchval(statements(address.prefix)["is_schema_there"].text, address.schema)
    return found
