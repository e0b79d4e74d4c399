"""The proxy does to connections what it says, and otherwise lets everything pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from perdure.testing.proxy import Proxy, proxy
from perdure.testing.speech import Conversation, Messages, Postgres, Verdict, packed

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[str, int]]:
    """A server that says what it hears."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1024):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


def between(body: Callable[[Proxy, Stream], Awaitable[None]]) -> None:
    """Run this with a proxy in front of the server, and a connection through it that works."""

    async def main() -> None:
        async with echoing() as target, proxy(target) as passing, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", passing.port)
            assert await said((reader, writer), b"hello") == b"hello"
            try:
                await body(passing, (reader, writer))
            finally:
                writer.close()

    asyncio.run(main())


async def said(stream: Stream, data: bytes) -> bytes:
    """The answer to this."""
    stream[1].write(data)
    return await stream[0].readexactly(len(data))


async def hears(stream: Stream, *, within_s: float) -> bool:
    """Whether anything comes in that time."""
    try:
        await asyncio.wait_for(stream[0].read(1), within_s)
    except TimeoutError:
        return False
    return True


def test_a_cut_ends_every_connection_and_the_next_one_works() -> None:
    async def body(passing: Proxy, stream: Stream) -> None:
        assert passing.cut() == 1
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await stream[0].readexactly(1)
        again = await asyncio.open_connection("127.0.0.1", passing.port)
        assert await said(again, b"again") == b"again"
        again[1].close()

    between(body)


def test_what_waited_in_a_black_hole_passes_late_and_nobody_connects_meanwhile() -> None:
    async def body(passing: Proxy, stream: Stream) -> None:
        passing.black_hole()
        late = await asyncio.open_connection("127.0.0.1", passing.port)
        late[1].write(b"me too")
        stream[1].write(b"late")
        assert not await hears(stream, within_s=0.1) and not await hears(late, within_s=0.1)

        passing.lift()

        assert await stream[0].readexactly(4) == b"late"
        assert await late[0].readexactly(6) == b"me too"
        late[1].close()

    between(body)


def test_connections_that_are_swallowed_stay_open_and_new_ones_work() -> None:
    async def body(passing: Proxy, stream: Stream) -> None:
        passing.swallow()
        stream[1].write(b"into the void")
        assert not await hears(stream, within_s=0.1)
        fresh = await asyncio.open_connection("127.0.0.1", passing.port)
        assert await said(fresh, b"fresh") == b"fresh"
        fresh[1].close()

        passing.cut()

        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await stream[0].readexactly(1)

    between(body)


def test_answers_that_are_lost_had_been_given() -> None:
    async def body(passing: Proxy, stream: Stream) -> None:
        passing.lose_answers()
        stream[1].write(b"did you hear?")
        await passing.answer_lost.wait()
        assert not await hears(stream, within_s=0.05)

    between(body)


def test_a_cut_ends_a_connection_whose_ends_have_both_gone_unheard() -> None:
    async def main() -> None:
        connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            connected.set_result(writer)

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        async with asyncio.timeout(10), proxy(server.sockets[0].getsockname()) as passing:
            _, writer = await asyncio.open_connection("127.0.0.1", passing.port)
            writer.write(b"x")
            other = await connected
            passing.swallow()
            other.close()
            writer.close()
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(passing) == 1, "both were heard going, and neither was told of the other"

            passing.cut()

            while len(passing):
                await asyncio.sleep(0)
        server.close()

    asyncio.run(main())


def test_an_answer_is_lost_when_its_transaction_is_committed_and_not_before() -> None:
    speech = Postgres()
    conversation = Conversation(speech)
    speech.lose("append")
    ready, in_transaction = (b"Z", b"I"), (b"Z", b"T")
    script = [
        ("asked", b"Q", b"BEGIN;\0", Verdict.PASS),
        ("answered", *in_transaction, Verdict.PASS),
        ("asked", b"P", b"s1\0select append()\0\0\0", Verdict.PASS),
        ("asked", b"B", b"\0s1\0", Verdict.PASS),
        ("answered", b"D", b"row", Verdict.PASS),
        ("answered", *in_transaction, Verdict.PASS),
        ("asked", b"Q", b"COMMIT;\0", Verdict.PASS),
        ("answered", b"C", b"COMMIT\0", Verdict.DROP),
        ("answered", *ready, Verdict.CUT),
    ]

    for way, kind, body, wanted in script:
        assert not speech.lost
        if way == "asked":
            conversation.asked(kind, body)
        else:
            assert conversation.answered(kind, body) is wanted, (kind, body)

    assert speech.lost == ["select append()"]


def test_nothing_is_lost_with_a_transaction_that_is_rolled_back() -> None:
    speech = Postgres()
    conversation = Conversation(speech)
    speech.lose("append")
    conversation.answered(b"Z", b"T")
    conversation.asked(b"P", b"\0select append()\0\0\0")
    conversation.asked(b"B", b"\0\0")
    conversation.asked(b"Q", b"ROLLBACK;\0")
    conversation.answered(b"Z", b"I")
    conversation.asked(b"Q", b"COMMIT;\0")

    assert conversation.answered(b"Z", b"I") is Verdict.PASS
    assert not speech.lost


def test_a_delay_comes_before_each_piece() -> None:
    async def body(passing: Proxy, stream: Stream) -> None:
        loop = asyncio.get_running_loop()
        passing.delay_s = 0.05
        asked_at = loop.time()
        assert await said(stream, b"slowly") == b"slowly"
        assert loop.time() - asked_at >= 0.1, "there and back"

    between(body)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_messages_are_found_however_the_bytes_are_cut(size: int) -> None:
    whole = [(b"P", b"name\0select 1\0"), (b"Z", b"I"), (b"D", b""), (b"D", b"x" * 50)]
    data = b"".join(packed(kind, body) for kind, body in whole)
    messages = Messages()

    found = [each for at in range(0, len(data), size) for each in messages.feed(data[at : at + size])]

    assert found == whole
