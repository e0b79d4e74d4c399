"""Postgres's NOTIFY as a sink, against a Postgres."""

from __future__ import annotations

import asyncio
import contextlib

import asyncpg
import msgspec
import pytest

from perdure.errors import Undeliverable, UsageError
from perdure.integrations import PostgresNotify
from perdure.testing.proxy import proxy
from tests.integrations.items import item
from tests.support import postgres


def dsn() -> str:
    server = postgres.shared()
    return f"postgresql://postgres@/postgres?host={server.directory}&port={server.port}"


async def heard(channel: str, *payloads: object, sink: PostgresNotify) -> list[str]:
    """What a listener hears of these deliveries."""
    listener = await asyncpg.connect(dsn())
    told: asyncio.Queue[str] = asyncio.Queue()
    await listener.add_listener(channel, lambda *message: told.put_nowait(message[3]))
    try:
        for payload in payloads:
            await sink.deliver(item(payload))
        return [await asyncio.wait_for(told.get(), 10) for _ in payloads]
    finally:
        await listener.close()
        await sink.close()


def test_whoever_listens_is_told_the_key_and_the_payload() -> None:
    sink = PostgresNotify(dsn(), "Orders of day 1")
    texts = asyncio.run(heard("Orders of day 1", {"n": "ä"}, [1], sink=sink))
    assert [msgspec.json.decode(text) for text in texts] == [
        {"id": "r1/ship", "data": {"n": "ä"}},
        {"id": "r1/ship", "data": [1]},
    ]


def test_postgres_takes_7999_bytes_and_a_longer_one_is_undeliverable() -> None:
    frame = len(b'{"id":"r1/ship","data":""}')
    fits = "x" * (7_999 - frame)

    async def main() -> None:
        sink = PostgresNotify(dsn(), "orders")
        (text,) = await heard("orders", fits, sink=sink)
        assert len(text) == 7_999
        with pytest.raises(Undeliverable, match="8,000 bytes"):
            await sink.deliver(item(fits + "x"))
        await sink.close()

    asyncio.run(main())


def test_after_its_connection_was_ended_it_makes_another() -> None:
    async def main() -> None:
        sink = PostgresNotify(dsn(), "orders")
        await sink.deliver(item())
        other = await asyncpg.connect(dsn())
        await other.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query like 'select pg_notify%'"
        )
        await other.close()
        # It may have noticed already; if not, it does at this try.
        with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await sink.deliver(item())
        await sink.deliver(item())
        await sink.close()

    asyncio.run(main())


def test_after_a_server_has_vanished_the_next_delivery_makes_a_new_connection() -> None:
    async def main() -> None:
        server = postgres.shared()
        async with proxy(server.directory / f".s.PGSQL.{server.port}") as between:
            url = f"postgresql://postgres@127.0.0.1:{between.port}/postgres?sslmode=disable"
            sink = PostgresNotify(url, "orders", timeout=0.5)
            await sink.deliver(item())
            between.swallow()
            with pytest.raises(TimeoutError, match=r"Postgres did not answer within 0\.5 s"):
                await sink.deliver(item())
            await sink.deliver(item())
            await sink.close()

    asyncio.run(main())


@pytest.mark.parametrize("channel", ["", "x" * 64])
def test_a_channel_that_postgres_has_no_name_for_is_refused(channel: str) -> None:
    with pytest.raises(UsageError, match="channel"):
        PostgresNotify("postgresql://x", channel)
