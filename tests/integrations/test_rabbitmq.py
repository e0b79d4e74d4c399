"""RabbitMQ's sink and source, against a RabbitMQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import msgspec
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, DeliveryError, PublishError
from aiormq import spec
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from perdure.errors import UsageError
from perdure.integrations import RabbitSink, RabbitSource
from perdure.testing.proxy import proxy
from tests.integrations.items import item, taking
from tests.support.brokers import Rabbit
from tests.support.waiting import PATIENCE_S, becomes


@asynccontextmanager
async def watching(rabbit: Rabbit, *, confirms: bool = True) -> AsyncIterator[AbstractChannel]:
    """A channel of the test's own."""
    async with await aio_pika.connect(rabbit.url) as connection:
        yield await connection.channel(publisher_confirms=confirms)


async def content(queue: AbstractQueue) -> list[AbstractIncomingMessage]:
    """Everything in it, taken out."""
    found = []
    while (message := await queue.get(fail=False)) is not None:
        await message.ack()
        found.append(message)
    return found


async def ready(channel: AbstractChannel, name: str) -> int:
    """How many messages wait in a queue, taken by nobody."""
    count = (await channel.declare_queue(name, passive=True)).declaration_result.message_count
    assert count is not None
    return count


def test_a_delivery_is_a_persistent_message_known_by_its_key(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            queue = await channel.declare_queue(name, durable=True)
            sink = RabbitSink(rabbit.url, routing_key=name)
            await sink.deliver(item({"n": "ä"}))
            (message,) = await content(queue)
            await sink.close()
        assert msgspec.json.decode(message.body) == {"n": "ä"}
        assert message.message_id == "r1/ship"
        assert message.headers == {"x-partition": "t1"}
        assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
        assert message.content_type == "application/json"
        assert message.timestamp == item().created_at

    asyncio.run(main())


def test_a_key_too_long_for_a_message_id_keeps_its_beginning_and_a_digest(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            queue = await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url, routing_key=name)
            for key in ("x" * 255, "x" * 256, "x" * 257):
                await sink.deliver(item(key=key))
            ids = [message.message_id for message in await content(queue)]
            await sink.close()
        assert ids[0] == "x" * 255
        assert len({*ids}) == 3 and all(id is not None and len(id) == 255 and id[:100] == "x" * 100 for id in ids)

    asyncio.run(main())


def test_an_exchange_routes_by_the_routing_key(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            exchange = await channel.declare_exchange(f"{name}x", aio_pika.ExchangeType.TOPIC, auto_delete=True)
            queue = await channel.declare_queue(name)
            await queue.bind(exchange, "orders.*")
            sink = RabbitSink(rabbit.url, f"{name}x", routing_key="orders.paid")
            await sink.deliver(item())
            assert len(await content(queue)) == 1
            await sink.close()

    asyncio.run(main())


def test_a_message_that_no_queue_takes_raises_and_the_next_may_go(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        sink = RabbitSink(rabbit.url, routing_key=name)
        with pytest.raises(PublishError):
            await sink.deliver(item())
        async with watching(rabbit) as channel:
            queue = await channel.declare_queue(name)
            await sink.deliver(item())
            assert len(await content(queue)) == 1
        await sink.close()

    asyncio.run(main())


def test_an_exchange_that_does_not_exist_raises_each_time(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        sink = RabbitSink(rabbit.url, f"{name}x", routing_key="any")
        for _ in range(2):
            with pytest.raises(CONNECTION_EXCEPTIONS, match="NOT_FOUND"):
                await sink.deliver(item())
        async with watching(rabbit) as channel:
            exchange = await channel.declare_exchange(f"{name}x", auto_delete=True)
            queue = await channel.declare_queue(name)
            await queue.bind(exchange, "any")
            await sink.deliver(item())
            assert len(await content(queue)) == 1
        await sink.close()

    asyncio.run(main())


def test_a_full_queue_refuses_and_takes_what_comes_when_it_has_room(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            queue = await channel.declare_queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            sink = RabbitSink(rabbit.url, routing_key=name)
            await sink.deliver(item(key="one"))
            with pytest.raises(DeliveryError):
                await sink.deliver(item(key="two"))
            assert [message.message_id for message in await content(queue)] == ["one"]
            await sink.deliver(item(key="two"))
            assert [message.message_id for message in await content(queue)] == ["two"]
            await sink.close()

    asyncio.run(main())


def test_many_at_once_share_one_connection_and_each_is_confirmed(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel, proxy(("127.0.0.1", rabbit.port)) as between:
            queue = await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url_at(between.port), routing_key=name)
            async with asyncio.TaskGroup() as group:
                for n in range(100):
                    group.create_task(sink.deliver(item(key=str(n))))
            assert len(between) == 1
            assert {message.message_id for message in await content(queue)} == {str(n) for n in range(100)}
            await sink.close()

    asyncio.run(main())


def test_a_delivery_whose_confirmation_was_lost_raises_and_comes_twice_under_one_id(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel, proxy(("127.0.0.1", rabbit.port)) as between:
            queue = await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url_at(between.port), routing_key=name)
            await sink.deliver(item(key="before"))
            between.lose_answers()
            trying = asyncio.create_task(sink.deliver(item(key="once")))
            await between.answer_lost.wait()
            between.cut()
            with pytest.raises(CONNECTION_EXCEPTIONS):
                await trying
            await sink.deliver(item(key="once", attempt=2))
            assert [message.message_id for message in await content(queue)] == ["before", "once", "once"]
            await sink.close()

    asyncio.run(main())


def test_a_broker_that_does_not_answer_is_given_up(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel, proxy(("127.0.0.1", rabbit.port)) as between:
            await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url_at(between.port), routing_key=name, timeout=0.3)
            between.black_hole()
            with pytest.raises(TimeoutError):
                await sink.deliver(item())
            between.lift()
            await sink.deliver(item())
            await sink.close()

    asyncio.run(main())


def test_after_a_broker_has_vanished_the_next_delivery_makes_a_new_connection(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel, proxy(("127.0.0.1", rabbit.port)) as between:
            queue = await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url_at(between.port), routing_key=name, timeout=0.3)
            await sink.deliver(item(key="before"))
            between.swallow()
            with pytest.raises(TimeoutError, match=r"RabbitMQ did not answer within 0\.3 s"):
                await sink.deliver(item(key="away"))
            await sink.deliver(item(key="after"))
            assert [message.message_id for message in await content(queue)] == ["before", "after"]
            await sink.close()

    asyncio.run(main())


def test_a_message_is_taken_once_it_is_acknowledged(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            await channel.declare_queue(name, durable=True)
            sink = RabbitSink(rabbit.url, routing_key=name)
            await sink.deliver(item({"n": 1}, key="one"))
            async with taking(RabbitSource(rabbit.url, name)) as source:
                first = await source.next()
                assert (first.id, first.data, first.headers) == ("one", {"n": 1}, {"x-partition": "t1"})
            async with taking(RabbitSource(rabbit.url, name)) as source:
                again = await source.next()
                assert (again.id, again.data) == (first.id, first.data)
                await again.ack()
            assert await ready(channel, name) == 0
            await sink.close()

    asyncio.run(main())


def test_what_is_rejected_goes_where_the_queue_puts_the_dead(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            dead = await channel.declare_queue(f"{name}-dead")
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
            await channel.declare_queue(name, arguments=letters)
            sink = RabbitSink(rabbit.url, routing_key=name)
            await sink.deliver(item(key="bad"))
            async with taking(RabbitSource(rabbit.url, name)) as source:
                await (await source.next()).reject()
                await becomes(lambda: ready(channel, dead.name), "it is among the dead")
            assert [message.message_id for message in await content(dead)] == ["bad"]
            await sink.close()

    asyncio.run(main())


def test_a_message_without_an_id_is_rejected_unless_one_is_found_in_it(rabbit: Rabbit, name: str) -> None:
    def identify(message: AbstractIncomingMessage) -> str | None:
        found: Any = msgspec.json.decode(message.body).get("id")
        return found

    async def main() -> None:
        async with watching(rabbit) as channel, watching(rabbit, confirms=False) as plain:
            dead = await channel.declare_queue(f"{name}-dead")
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
            await channel.declare_queue(name, arguments=letters)
            for body in (b'{"id": "i1"}', b"{}"):
                await _publish_without_id(plain, body, name)
            async with taking(RabbitSource(rabbit.url, name, identify=identify)) as source:
                found = await source.next()
                assert found.id == "i1"
                await found.ack()
                without = await source.next()
                assert isinstance(without.unfit, UsageError)
                await without.reject()
                await becomes(lambda: ready(channel, dead.name), "the other is rejected")

    asyncio.run(main())


def test_a_message_that_nothing_can_be_made_of_takes_no_other_along(rabbit: Rabbit, name: str) -> None:
    def identify(message: AbstractIncomingMessage) -> str:
        return str(msgspec.json.decode(message.body)["id"])

    async def main() -> None:
        async with watching(rabbit) as channel, watching(rabbit, confirms=False) as plain:
            await channel.declare_queue(name)
            for body in (b"[" * 3_000, b'{"id": "good"}'):
                await _publish_without_id(plain, body, name)
            async with taking(RabbitSource(rabbit.url, name, identify=identify)) as source:
                bad, good = await source.next(), await source.next()
                assert isinstance(bad.unfit, RecursionError)
                assert (good.id, good.unfit) == ("good", None)
                for each in (bad, good):
                    await each.reject()

    asyncio.run(main())


def test_a_source_has_as_many_under_way_as_it_may(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url, routing_key=name)
            for n in range(5):
                await sink.deliver(item(key=str(n)))
            async with taking(RabbitSource(rabbit.url, name, prefetch=2)) as source:
                first = await source.next()
                second = await source.next()
                assert await ready(channel, name) == 3
                await first.ack()
                third = await source.next()
                assert [first.id, second.id, third.id] == ["0", "1", "2"]
            await sink.close()

    asyncio.run(main())


def test_a_lost_connection_ends_a_source_and_what_was_not_acknowledged_comes_again(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel, proxy(("127.0.0.1", rabbit.port)) as between:
            await channel.declare_queue(name)
            sink = RabbitSink(rabbit.url, routing_key=name)
            await sink.deliver(item(key="one"))
            source = RabbitSource(rabbit.url_at(between.port), name)
            async with taking(source) as taken:
                first = await taken.next()
                between.cut()
                with pytest.raises(CONNECTION_EXCEPTIONS):
                    await taken.next()
                with pytest.raises(CONNECTION_EXCEPTIONS):
                    await first.ack()
            async with taking(source) as taken:
                again = await taken.next()
                assert again.id == first.id
                await again.ack()
            await sink.close()

    asyncio.run(main())


def test_a_queue_that_does_not_exist_or_goes_ends_a_source(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        source = RabbitSource(rabbit.url, name)
        async with taking(source) as taken:
            with pytest.raises(CONNECTION_EXCEPTIONS, match="NOT_FOUND"):
                await taken.next()
        async with watching(rabbit) as channel:
            queue = await channel.declare_queue(name)
            async with taking(source) as taken:
                waiting = asyncio.create_task(taken.next())
                await becomes(lambda: _consumers(channel, name), "it listens")
                await queue.delete(if_unused=False, if_empty=False)
                with pytest.raises(ConnectionError):
                    await waiting

    asyncio.run(main())


def test_what_was_confirmed_survives_the_broker_and_sink_and_source_find_it_again(rabbit: Rabbit, name: str) -> None:
    async def main() -> None:
        async with watching(rabbit) as channel:
            await channel.declare_queue(name, durable=True)
        sink = RabbitSink(rabbit.url, routing_key=name)
        confirmed = [key for key in map(str, range(20)) if await _delivered(sink, key)]
        under_way = [asyncio.create_task(_delivered(sink, f"u{n}")) for n in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(rabbit.kill)
        confirmed += [f"u{n}" for n, done in enumerate(await asyncio.gather(*under_way)) if done]
        assert not await _delivered(sink, "away")
        await asyncio.to_thread(rabbit.start)
        await sink.deliver(item(key="after"))
        found = set()
        async with asyncio.timeout(PATIENCE_S), taking(RabbitSource(rabbit.url, name)) as source:
            while "after" not in found:
                message = await source.next()
                await message.ack()
                found.add(message.id)
        assert found >= {*confirmed, "after"}
        await sink.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RabbitSink("amqp://x/"), "routing key"),
        (lambda: RabbitSource("amqp://x/", "q", prefetch=0), "prefetch"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


async def _publish_without_id(channel: AbstractChannel, body: bytes, queue: str) -> None:
    """Frame by frame: the driver gives every message an id."""
    under = await channel.get_underlay_channel()
    properties = ContentHeader(properties=spec.Basic.Properties(), body_size=len(body))
    frames = [spec.Basic.Publish(exchange="", routing_key=queue), properties, ContentBody(body)]
    await under.write_queue.put(ChannelFrame.marshall(under.number, frames))  # type: ignore[attr-defined]


async def _delivered(sink: RabbitSink, key: str) -> bool:
    try:
        await sink.deliver(item(key=key))
    except CONNECTION_EXCEPTIONS:
        return False
    return True


async def _consumers(channel: AbstractChannel, name: str) -> int:
    count = (await channel.declare_queue(name, passive=True)).declaration_result.consumer_count
    assert count is not None
    return count
