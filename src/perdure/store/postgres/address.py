"""Where a Postgres store lies: what its URL says.

`postgresql://user:password@host:5432/database?schema=perdure` and, optionally, `pooler=transaction`; whatever else
stands in the query (`sslmode`, `host` for a socket's directory, …) is the driver's. A pooler that gives every
transaction another connection can keep neither prepared statements nor session locks nor listeners of the database:
with `pooler=transaction` the store does without, and work is found by polling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from perdure.errors import UsageError

OWN: Final = ("schema", "pooler")
"""Names in the query that are perdure's."""

SCHEMES: Final = ("postgresql", "postgres")
SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}")
"""A plain identifier, short enough that the name of the hints' channel fits into Postgres's 63 bytes."""


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed URL."""

    dsn: str
    """What the driver gets."""
    public: str
    """The same without a password, for messages and logs."""
    schema: str
    pooled: bool
    """Whether a transaction pooler stands in between."""

    @property
    def prefix(self) -> str:
        """What `perdure.` in the store's SQL becomes."""
        return f'"{self.schema}".'

    @property
    def channel(self) -> str:
        """Where hints are sent; `functions/` writes it as `'perdure.hints'`."""
        return self.prefix + "hints"


def parse(url: str) -> Address:
    """Take the URL apart; a `UsageError` says what is wrong with it."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in query if name in OWN}
    rest = [(name, value) for name, value in query if name not in own]
    netloc = re.sub(r"^([^:@/]*):[^@/]*@", r"\1@", parts.netloc)
    shown = [(name, value) for name, value in query if name != "password"]
    public = urlunsplit(parts._replace(netloc=netloc, query=urlencode(shown, safe="/")))

    if parts.scheme not in SCHEMES:
        raise UsageError(f"{public} is no Postgres URL: postgresql://user@host/database?schema=perdure is one")
    schema = own.get("schema", "perdure")
    if not SCHEMA.fullmatch(schema):
        raise UsageError(f"schema {schema!r} in {public}: use letters, digits and _, at most 50", schema=schema)
    pooler = own.get("pooler", "session")
    if pooler not in ("session", "transaction"):
        raise UsageError(f"pooler={pooler} in {public}: it is transaction, or not given", pooler=pooler)
    dsn = urlunsplit(parts._replace(query=urlencode(rest)))
    return Address(dsn, public, schema, pooler == "transaction")


def refused_setting(address: Address, error: Exception) -> UsageError:
    """What the server refuses of the query: a name that neither perdure nor the driver has is a setting of the server,
    and that one has no such setting, or not with such a value."""
    given = [name for name, _ in parse_qsl(urlsplit(address.dsn).query) if f'"{name}"' in str(error)]
    near = next((near[0] for name in given if (near := get_close_matches(name, OWN, n=1))), None)
    meant = f" Did you mean {near}?" if near else ""
    return UsageError(
        f"{address.public} is refused: {error}.{meant} Its query takes {' and '.join(OWN)}, what the driver takes "
        "(sslmode, host, ...), and settings of the server.",
        url=address.public,
    )
