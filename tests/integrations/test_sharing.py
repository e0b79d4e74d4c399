"""A connection that many deliveries use at once, and what one of them that times out means to the others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from perdure.integrations.sharing import Shared


class Connection:
    def __init__(self) -> None:
        self.lost = False
        self.closed = 0


class Connecting:
    """All connections that were made, in order."""

    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.connecting, self.may_connect, self.may_close = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_connect.set()
        self.may_close.set()
        self.error: Exception | None = None
        self.close_error: Exception | None = None
        self.shared = Shared(self._connect, self._close, is_lost=lambda connection: connection.lost)

    async def _connect(self) -> Connection:
        self.connecting.set()
        await self.may_connect.wait()
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.made.append(Connection())
        return self.made[-1]

    async def _close(self, connection: Connection) -> None:
        await self.may_close.wait()
        connection.closed += 1
        if self.close_error is not None:
            raise self.close_error

    @property
    def closed(self) -> list[int]:
        """How often each was closed."""
        return [each.closed for each in self.made]

    async def close_to(self, *closed: int) -> None:
        """Each is closed so often, once the loop has come round."""
        await asyncio.sleep(0)
        assert self.closed == list(closed)

    async def use(self) -> None:
        async with self.shared.use():
            pass


def test_all_use_one_connection() -> None:
    async def main() -> None:
        many = Connecting()

        async def one() -> Connection:
            async with many.shared.use() as connection:
                return connection

        assert set(await asyncio.gather(*(one() for _ in range(5)))) == set(many.made)
        assert many.closed == [0]
        await many.shared.close()
        assert many.closed == [1]

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
            await many.close_to(0, 0)
        await many.close_to(1, 0)  # the last of its users has ended
        await many.shared.close()
        assert many.closed == [1, 1]

    asyncio.run(main())


def test_one_that_is_alone_and_gets_no_answer_closes_its_connection() -> None:
    async def main() -> None:
        many = Connecting()
        with pytest.raises(TimeoutError):
            async with many.shared.use():
                raise TimeoutError
        await many.close_to(1)
        await many.shared.close()

    asyncio.run(main())


def test_a_refusal_says_nothing_about_the_connection() -> None:
    async def main() -> None:
        many = Connecting()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                async with many.shared.use():
                    raise ValueError("no")
        await many.close_to(0)

    asyncio.run(main())


def test_a_connection_that_is_lost_is_replaced() -> None:
    async def main() -> None:
        many = Connecting()
        async with many.shared.use() as first:
            first.lost = True
        async with many.shared.use() as second:
            assert second is not first
        await many.close_to(1, 0)

    asyncio.run(main())


def test_closing_takes_those_along_that_wait_for_their_users() -> None:
    async def main() -> None:
        many = Connecting()
        async with many.shared.use():
            with pytest.raises(TimeoutError):
                async with many.shared.use():
                    raise TimeoutError
            await many.shared.close()
            assert many.closed == [1]
        await many.close_to(1)

    asyncio.run(main())


def test_no_delivery_waits_for_a_connection_to_be_closed_or_fails_because_that_does() -> None:
    async def main() -> None:
        many = Connecting()
        many.may_close.clear()
        many.close_error = ConnectionError("it is gone already")
        async with many.shared.use():
            with pytest.raises(TimeoutError):
                async with many.shared.use():
                    raise TimeoutError
        many.made[0].lost = True
        await many.use()
        many.may_close.set()
        await many.shared.close()
        assert many.closed == [1, 1]

    asyncio.run(main())


def test_closing_waits_for_what_is_being_closed() -> None:
    async def main() -> None:
        many = Connecting()
        many.may_close.clear()
        with pytest.raises(TimeoutError):
            async with many.shared.use():
                raise TimeoutError
        closing = asyncio.create_task(many.shared.close())
        await many.close_to(0)
        assert not closing.done()
        many.may_close.set()
        await closing
        assert many.closed == [1]

    asyncio.run(main())


def test_what_is_being_opened_while_all_is_closed_is_closed_after_its_use() -> None:
    async def main() -> None:
        many = Connecting()
        many.may_connect.clear()
        using = asyncio.create_task(many.use())
        await many.connecting.wait()
        await many.shared.close()
        many.may_connect.set()
        await using
        await many.close_to(1)
        await many.use()
        await many.close_to(1, 0)
        await many.shared.close()

    asyncio.run(main())


def test_whoever_cannot_connect_or_gives_it_up_leaves_it_to_the_next() -> None:
    async def main() -> None:
        many = Connecting()
        many.error = ConnectionError("nobody is there")
        with pytest.raises(ConnectionError):
            await many.use()
        many.error = None
        many.connecting.clear()
        many.may_connect.clear()
        first, second, third = (asyncio.create_task(many.use()) for _ in range(3))
        await many.connecting.wait()
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        many.may_connect.set()
        await third
        assert many.closed == [0]
        await many.shared.close()

    asyncio.run(main())
