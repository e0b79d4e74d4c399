"""Where a Postgres store lies, and what its user may."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from perdure.errors import StoreError, StoreUnavailable, UsageError
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.address import parse
from tests.support import postgres

pytestmark = pytest.mark.postgres


# -- rights --------------------------------------------------------------------------------------------------


def test_a_schema_that_its_user_owns_needs_no_right_on_the_database() -> None:
    server, url = postgres.shared(), postgres.shared().fresh_url()
    schema = parse(url).schema

    async def body() -> None:
        connection = await asyncpg.connect(server.url().rpartition("&")[0])
        try:
            await connection.execute(f"create role {schema} login; create schema {schema} authorization {schema}")
            store = PostgresStore(url.replace("postgres@", f"{schema}@"))
            await store.open()
            assert await store.reserve_ids(1)
            await store.close()
        finally:
            await connection.execute(f"drop schema {schema} cascade; drop role {schema}")
            await connection.close()

    asyncio.run(body())


# -- addresses -----------------------------------------------------------------------------------------------


def test_a_password_is_shown_nowhere() -> None:
    store = PostgresStore("postgresql://me:secret@db.example/app?schema=runs&password=secret")

    assert store.url == "postgresql://me@db.example/app?schema=runs"


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u@h/d",
        "postgresql://u@h/d?schema=a-b",
        "postgresql://u@h/d?schema=" + "a" * 51,
        "postgresql://u@h/d?pooler=maybe",
    ],
)
def test_a_wrong_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        parse(url)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "shema=p",
            r"parameter \"shema\"\. Did you mean schema\? Its query takes schema and pooler, what",
        ),
        ("statement_timeout=soon", r"\"statement_timeout\": \"soon\"\. Its query takes"),
        ("max_connections=7", r"\"max_connections\" cannot be changed .*\. Its query takes"),
    ],
)
def test_a_setting_in_the_address_that_the_server_does_not_take_is_a_usage_error(query: str, said: str) -> None:
    store = PostgresStore(postgres.shared().fresh_url() + f"&{query}")

    with pytest.raises(UsageError, match=said):
        asyncio.run(store.open())


def test_settings_of_the_server_and_of_the_driver_may_stand_in_the_address() -> None:
    url = postgres.shared().fresh_url() + "&statement_timeout=60s&sslmode=disable&target_session_attrs=any"

    async def body() -> None:
        store = PostgresStore(url)
        await store.open()
        assert await store.now_us()
        await store.close()

    asyncio.run(body())


def test_a_server_that_is_not_there_is_named_with_a_remedy() -> None:
    store = PostgresStore("postgresql://me:secret@127.0.0.1:1/app")

    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/app.*Is the server running") as caught:
        asyncio.run(store.open())

    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_no_passing_trouble() -> None:
    url = postgres.shared().url().replace("/postgres?", "/nowhere?")

    with pytest.raises(StoreError, match="Create it, or correct the URL") as caught:
        asyncio.run(PostgresStore(url).open())

    assert not isinstance(caught.value, StoreUnavailable)
