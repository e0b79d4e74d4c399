"""The road to a store: where the proxy leads, and what children are told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.errors import UsageError
from perdure.testing.chaos.roads import by_way_of, road_to, target_of


@pytest.mark.parametrize(
    ("url", "target", "road"),
    [
        (
            "postgresql://me:secret@db.example:6000/app?schema=runs",
            ("db.example", 6000),
            "postgresql://me:secret@127.0.0.1:7/app?schema=runs&sslmode=disable",
        ),
        (
            "postgresql://postgres@/postgres?host=/run/pg&port=5433&schema=s",
            Path("/run/pg/.s.PGSQL.5433"),
            "postgresql://postgres@127.0.0.1:7/postgres?schema=s&sslmode=disable",
        ),
        (
            "postgresql://db.example/app?sslmode=require",
            ("db.example", 5432),
            "postgresql://127.0.0.1:7/app?sslmode=require",
        ),
    ],
)
def test_only_the_address_changes_on_the_way_through_the_proxy(url: str, target: object, road: str) -> None:
    assert target_of(url) == target
    assert by_way_of(url, 7) == road


@pytest.mark.parametrize("url", ["postgresql:///app", "postgresql://u@one,two/app", "postgresql://u@/app?host=a,b"])
def test_a_server_that_is_not_one_host_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="one host"):
        target_of(url)


def test_a_file_is_reached_without_a_proxy() -> None:
    async def main() -> None:
        async with road_to("sqlite:///runs.db") as road:
            assert road.url == "sqlite:///runs.db" and road.proxy is None

    asyncio.run(main())
