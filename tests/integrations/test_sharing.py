"""A connection that many deliveries use at once, and what one of them that times out means to the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from perdure.integrations.sharing import Shared


class Connection:
    def __init__(self) -> None:
        self.lost = self.closed = False


class Connecting:
    """All connections that were made, in order."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.shared = Shared(self._connect, self._close, is_lost=lambda connection: connection.lost)

    async def _connect(self) -> Connection:
        await asyncio.sleep(0)
        self.made.append(Connection())
        return self.made[-1]

    async def _close(self, connection: Connection) -> None:
        assert not connection.closed, "closed twice"
        connection.closed = True

    @property
    def closed(self) -> list[bool]:
        return [each.closed for each in self.made]


def test_all_use_one_connection() -> None:
    async def main() -> None:
        many = Connecting()

        async def one() -> Connection:
            async with many.shared.use() as connection:
                return connection

        assert set(await asyncio.gather(*(one() for _ in range(5)))) == set(many.made)
        assert many.closed == [False]
        await many.shared.close()
        assert many.closed == [True]

    asyncio.run(main())


@pytest.mark.parametrize("error", [TimeoutError, asyncio.CancelledError])
def test_one_that_gets_no_answer_leaves_the_others_their_connection(error: type[BaseException]) -> None:
    async def main() -> None:
        many = Connecting()
        async with AsyncExitStack() as stack:
            other = await stack.enter_async_context(many.shared.use())
            with pytest.raises(error):
                async with many.shared.use() as silent:
                    raise error
            assert silent is other
            async with many.shared.use() as next_one:
                assert next_one is not other
            assert many.closed == [False, False]
        assert many.closed == [True, False], "the last of its users has ended"
        await many.shared.close()
        assert many.closed == [True, True]

    asyncio.run(main())


def test_one_that_is_alone_and_gets_no_answer_closes_its_connection() -> None:
    async def main() -> None:
        many = Connecting()
        with pytest.raises(TimeoutError):
            async with many.shared.use():
                raise TimeoutError
        assert many.closed == [True]
        await many.shared.close()

    asyncio.run(main())


def test_a_refusal_says_nothing_about_the_connection() -> None:
    async def main() -> None:
        many = Connecting()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                async with many.shared.use():
                    raise ValueError("no")
        assert many.closed == [False]

    asyncio.run(main())


def test_a_connection_that_is_lost_is_replaced() -> None:
    async def main() -> None:
        many = Connecting()
        async with many.shared.use() as first:
            first.lost = True
        async with many.shared.use() as second:
            assert second is not first
        assert many.closed == [True, False]

    asyncio.run(main())


def test_closing_takes_those_along_that_wait_for_their_users() -> None:
    async def main() -> None:
        many = Connecting()
        async with many.shared.use():
            with pytest.raises(TimeoutError):
                async with many.shared.use():
                    raise TimeoutError
            await many.shared.close()
            assert many.closed == [True]
        assert many.closed == [True]

    asyncio.run(main())
