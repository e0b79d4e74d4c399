"""The road to a store: straight for the director, and for everybody else, where the store is a server, by a proxy.

What stands in a Postgres URL besides the address (user, password, database, schema) stays as it is. Where the URL says
nothing about encryption, none is asked for on the way to the proxy; behind it a server that insists on it refuses, and
then `sslmode=require` in the URL helps, at the price of faults that read the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from perdure.errors import UsageError
from perdure.testing.proxy import Proxy, Target, proxy
from perdure.testing.speech import Postgres

PORT: Final = 5432
SCHEMES: Final = ("postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class Road:
    """How children reach the store."""

    url: str
    proxy: Proxy | None = None
    speech: Postgres | None = None


def is_postgres(url: str) -> bool:
    """Whether this is a server's URL."""
    return urlsplit(url).scheme in SCHEMES


@asynccontextmanager
async def road_to(url: str) -> AsyncIterator[Road]:
    """A road to the store at this URL."""
    if not is_postgres(url):
        yield Road(url)
        return
    speech = Postgres()
    async with proxy(target_of(url), speech=speech) as between:
        yield Road(by_way_of(url, between.port), between, speech)


def target_of(url: str) -> Target:
    """Where the server of a Postgres URL listens."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = query.get("host") or parts.hostname
    port = int(query.get("port") or parts.port or PORT)
    if not host or "," in parts.netloc or "," in host:
        raise UsageError(
            "chaos puts a proxy in front of the server, so the store's URL must name one host: "
            "postgresql://user@host:port/database"
        )
    return Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)


def by_way_of(url: str, port: int) -> str:
    """The URL with a port of the loopback in place of the server's address."""
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("host", "port")]
    if not any(name == "sslmode" for name, _ in query):
        query.append(("sslmode", "disable"))
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}", query=urlencode(query, quote_via=quote)))
