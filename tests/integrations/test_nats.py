"""NATS's sink and source, against a NATS server with JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DiscardPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from perdure.errors import Undeliverable, UsageError
from perdure.integrations import NatsSink, NatsSource
from perdure.testing.proxy import proxy
from tests.integrations.items import item, taking
from tests.support.brokers import Nats
from tests.support.waiting import becomes


@asynccontextmanager
async def stream(server: Nats, name: str, **settings: object) -> AsyncIterator[JetStreamContext]:
    """A stream for the subjects below a name."""
    connection = await nats.connect(server.url)
    try:
        context = connection.jetstream()
        await context.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"], **settings))  # type: ignore[arg-type]
        yield context
    finally:
        await connection.close()


async def consumer(context: JetStreamContext, name: str, *, ack_wait: float) -> None:
    """The stream's durable consumer `w`, which waits so long for an acknowledgement."""
    await context.add_consumer(name, ConsumerConfig(durable_name="w", filter_subject=f"{name}.>", ack_wait=ack_wait))


async def stored(context: JetStreamContext, name: str) -> list[str]:
    """The ids of what a stream has."""
    state = (await context.stream_info(name)).state
    messages = [await context.get_msg(name, seq) for seq in range(state.first_seq, state.last_seq + 1)]
    return [(message.headers or {})["Nats-Msg-Id"] for message in messages]


def test_a_delivery_is_stored_under_its_key_once_however_often_it_is_published(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context:
            sink = NatsSink(nats_server.url, f"{name}.paid")
            await sink.deliver(item({"n": 1}))
            await sink.deliver(item({"n": 1}, attempt=2))
            await sink.deliver(item(key="größe 2"))
            assert await stored(context, name) == ["r1/ship", "gr%C3%B6%C3%9Fe%202"]
            first = await context.get_msg(name, 1)
            assert (first.data, (first.headers or {})["Perdure-Partition"]) == (b'{"n":1}', "t1")
            await sink.close()

    asyncio.run(main())


def test_a_subject_without_a_stream_raises_and_the_next_may_go(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        sink = NatsSink(nats_server.url, f"{name}.paid")
        with pytest.raises(NoStreamResponseError):
            await sink.deliver(item())
        async with stream(nats_server, name) as context:
            await sink.deliver(item())
            assert await stored(context, name) == ["r1/ship"]
        await sink.close()

    asyncio.run(main())


def test_a_full_stream_and_the_wrong_stream_raise(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name, max_msgs=1, discard=DiscardPolicy.NEW) as context:
            sink = NatsSink(nats_server.url, f"{name}.paid")
            await sink.deliver(item(key="one"))
            with pytest.raises(APIError, match="maximum messages"):
                await sink.deliver(item(key="two"))
            await context.purge_stream(name)
            await sink.deliver(item(key="two"))
            await sink.close()
            other = NatsSink(nats_server.url, f"{name}.paid", stream="another")
            with pytest.raises(APIError, match="expected stream"):
                await other.deliver(item(key="three"))
            await other.close()

    asyncio.run(main())


def test_what_is_too_large_for_the_server_is_undeliverable(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        sink = NatsSink(nats_server.url, f"{name}.paid")
        with pytest.raises(Undeliverable):
            await sink.deliver(item("x" * 2_000_000))
        await sink.close()

    asyncio.run(main())


def test_a_delivery_whose_answer_was_lost_raises_and_is_stored_once(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context, proxy(("127.0.0.1", nats_server.port)) as between:
            sink = NatsSink(nats_server.url_at(between.port), f"{name}.paid")
            await sink.deliver(item(key="before"))
            between.lose_answers()
            trying = asyncio.create_task(sink.deliver(item(key="once")))
            await between.answer_lost.wait()
            between.cut()
            with pytest.raises((Error, OSError)):
                await trying
            await sink.deliver(item(key="once", attempt=2))
            assert await stored(context, name) == ["before", "once"]
            await sink.close()

    asyncio.run(main())


def test_after_a_server_has_vanished_the_next_delivery_makes_a_new_connection(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context, proxy(("127.0.0.1", nats_server.port)) as between:
            sink = NatsSink(nats_server.url_at(between.port), f"{name}.paid", timeout=0.3)
            await sink.deliver(item(key="before"))
            between.swallow()
            with pytest.raises(TimeoutError):
                await sink.deliver(item(key="away"))
            await sink.deliver(item(key="after"))
            assert await stored(context, name) == ["before", "after"]
            await sink.close()

    asyncio.run(main())


def test_a_message_is_taken_once_it_is_acknowledged(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context:
            sink = NatsSink(nats_server.url, f"{name}.paid")
            for key in ("one", "two"):
                await sink.deliver(item({"k": key}, key=key))
            await context.publish(f"{name}.paid", b"plain")
            async with taking(NatsSource(nats_server.url, f"{name}.>", durable="w")) as source:
                first, second, third = [await source.next() for _ in range(3)]
                assert (first.id, first.data, first.headers["Perdure-Partition"]) == ("one", {"k": "one"}, "t1")
                assert (third.id, third.data) == (f"{name}:3", "plain")
                await first.ack()
                await third.ack()
                info = await context.consumer_info(name, "w")
                assert info.num_ack_pending == 1
                await second.reject()
                await becomes(lambda: _pending(context, name, 0), "it is terminated")
            await sink.close()

    asyncio.run(main())


def test_what_was_not_acknowledged_comes_again(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context, proxy(("127.0.0.1", nats_server.port)) as between:
            await consumer(context, name, ack_wait=0.2)
            sink = NatsSink(nats_server.url, f"{name}.paid")
            await sink.deliver(item(key="one"))
            source = NatsSource(nats_server.url_at(between.port), f"{name}.>", durable="w")
            async with taking(source) as taken:
                first = await taken.next()
                waiting = asyncio.create_task(taken.next())
                await becomes(lambda: _asks(context, name), "it asks for more")
                between.cut()
                with pytest.raises((Error, OSError)):
                    await waiting
                with pytest.raises((Error, OSError)):
                    await first.ack()
            async with taking(source) as taken:
                again = await taken.next()
                assert again.id == first.id
                await again.ack()
            await sink.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["ack", "reject"])
def test_a_message_whose_answer_was_not_heard_is_held_no_longer(
    nats_server: Nats, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unheard(*_: object, **__: object) -> None:
        raise ConnectionError("nobody hears")

    async def main() -> None:
        async with stream(nats_server, name) as context:
            await consumer(context, name, ack_wait=0.5)
            await context.publish(f"{name}.paid", b"tea")
            async with taking(NatsSource(nats_server.url, f"{name}.>", durable="w")) as source:
                first = await source.next()
                with monkeypatch.context() as patch, pytest.raises(ConnectionError):
                    patch.setattr("nats.aio.msg.Msg.ack_sync", unheard)
                    patch.setattr("nats.aio.msg.Msg.term", unheard)
                    await getattr(first, how)()
                again = await source.next()
                assert again.id == first.id
                await again.ack()

    asyncio.run(main())


def test_what_is_under_way_for_longer_than_its_time_out_does_not_come_again(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name) as context:
            await consumer(context, name, ack_wait=0.5)
            await context.publish(f"{name}.paid", b"slow")
            async with taking(NatsSource(nats_server.url, f"{name}.>", durable="w")) as source:
                message = await source.next()
                waiting = asyncio.create_task(source.next())
                await asyncio.sleep(1.2)  # longer than the consumer waits
                assert not waiting.done()
                info = await context.consumer_info(name, "w")
                assert (info.num_redelivered, info.num_ack_pending) == (0, 1)
                await message.ack()
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())


def test_what_was_stored_survives_the_server_and_sink_and_source_find_it_again(nats_server: Nats, name: str) -> None:
    async def main() -> None:
        async with stream(nats_server, name, storage=StorageType.FILE):
            sink = NatsSink(nats_server.url, f"{name}.paid")
            await sink.deliver(item(key="before"))
        nats_server.kill()
        with pytest.raises((Error, OSError)):
            await sink.deliver(item(key="away"))
        nats_server.start()
        await sink.deliver(item(key="after"))
        async with taking(NatsSource(nats_server.url, f"{name}.>", durable="w")) as source:
            found = [await source.next() for _ in range(2)]
            assert [message.id for message in found] == ["before", "after"]
        await sink.close()

    asyncio.run(main())


def test_a_source_has_a_name_by_which_the_server_remembers_it() -> None:
    with pytest.raises(UsageError, match="durable"):
        NatsSource("nats://x", "s", durable="")


async def _pending(context: JetStreamContext, name: str, count: int) -> bool:
    return (await context.consumer_info(name, "w")).num_ack_pending == count


async def _asks(context: JetStreamContext, name: str) -> bool:
    return bool((await context.consumer_info(name, "w")).num_waiting)
