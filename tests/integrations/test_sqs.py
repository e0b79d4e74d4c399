"""SQS's sink and source, against moto's SQS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from perdure.errors import Undeliverable, UsageError
from perdure.integrations import SqsSink, SqsSource
from perdure.testing.proxy import Proxy, proxy
from tests.integrations.items import item, taking
from tests.support.brokers import Sqs
from tests.support.waiting import becomes

AWS = get_session()


@asynccontextmanager
async def queue(sqs: Sqs, name: str, **attributes: str) -> AsyncIterator[tuple[Any, str]]:
    """A client of the test's own, and the URL of a queue."""
    async with AWS.create_client("sqs", **sqs.client()) as client:
        url = (await client.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
        yield client, url


async def content(client: Any, url: str) -> list[dict[str, Any]]:
    """Everything that is visible in it, taken out."""
    found: list[dict[str, Any]] = []
    while messages := (
        await client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        )
    ).get("Messages"):
        for message in messages:
            await client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        found += messages
    return found


async def counts(client: Any, url: str) -> tuple[int, int]:
    """How many messages are visible, and how many in somebody's hands."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = (await client.get_queue_attributes(QueueUrl=url, AttributeNames=names))["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def test_a_delivery_is_a_message_with_its_key_as_an_attribute(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (client, url):
            sink = SqsSink(url, client=sqs.client())
            await sink.deliver(item({"n": "ä"}))
            await sink.close()
            (message,) = await content(client, url)
        assert msgspec.json.decode(message["Body"]) == {"n": "ä"}
        attributes = {key: value["StringValue"] for key, value in message["MessageAttributes"].items()}
        assert attributes == {"perdure-key": "r1/ship", "perdure-partition": "t1"}

    asyncio.run(main())


def test_a_fifo_queue_takes_a_key_once_and_keeps_a_partition_in_order(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, f"{name}.fifo", FifoQueue="true") as (client, url):
            sink = SqsSink(url, client=sqs.client())
            await sink.deliver(item(key="one"))
            await sink.deliver(item(key="one", attempt=2))
            await sink.deliver(item(key="ö" * 500, partition="größe"))
            await sink.deliver(item(key="three", partition=""))
            await sink.close()
            async with taking(SqsSource(url, client=sqs.client())) as source:
                found = [await source.next() for _ in range(3)]
                for message in found:
                    await message.ack()
            assert await counts(client, url) == (0, 0)
        assert [message.id[:12] for message in found] == ["one", "%C3%B6%C3%B6", "three"]

    asyncio.run(main())


def test_what_the_queue_can_never_take_is_undeliverable(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name, MaximumMessageSize="1024") as (_, url):
            sink = SqsSink(url, client=sqs.client())
            with pytest.raises(Undeliverable, match="shorter"):
                await sink.deliver(item("x" * 2_000))
            await sink.close()

    asyncio.run(main())


def test_a_queue_that_does_not_exist_is_an_error_that_may_pass(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        sink = SqsSink(f"http://127.0.0.1:{sqs.port}/123456789012/{name}", client=sqs.client())
        with pytest.raises(ClientError, match="does not exist"):
            await sink.deliver(item())
        async with queue(sqs, name) as (client, url):
            await sink.deliver(item())
            assert len(await content(client, url)) == 1
        await sink.close()

    asyncio.run(main())


def test_a_delivery_whose_answer_was_lost_raises_and_has_the_same_id_when_it_comes_again(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (client, url), proxy(("127.0.0.1", sqs.port)) as between:
            once = Config(retries={"total_max_attempts": 1})
            sink = SqsSink(url, client={**sqs.client(between.port), "config": once})
            await sink.deliver(item(key="before"))
            # The server closes each connection after its answer, so it is the next one whose answer is to be lost.
            await becomes(lambda: _connections(between, 0), "the first is gone")
            between.delay_s = 0.1
            trying = asyncio.create_task(sink.deliver(item(key="again")))
            await becomes(lambda: _connections(between, 1), "it connects")
            between.lose_answers()
            between.delay_s = 0
            await between.answer_lost.wait()
            between.cut()
            with pytest.raises((BotoCoreError, OSError)):
                await trying
            await sink.deliver(item(key="again", attempt=2))
            await sink.close()
            found = [
                message["MessageAttributes"]["perdure-key"]["StringValue"] for message in await content(client, url)
            ]
        assert found == ["before", "again", "again"]

    asyncio.run(main())


def test_a_message_is_gone_once_it_is_acknowledged_and_not_before(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (client, url):
            sink = SqsSink(url, client=sqs.client())
            await sink.deliver(item({"n": 1}, key="one"))
            await sink.close()
            await client.send_message(QueueUrl=url, MessageBody="plain")
            async with taking(SqsSource(url, client=sqs.client())) as source:
                first, second = await source.next(), await source.next()
                assert (first.id, first.data, first.headers["perdure-partition"]) == ("one", {"n": 1}, "t1")
                assert second.data == "plain" and len(second.id) == 36
                await first.ack()
                assert await counts(client, url) == (0, 1)
                await second.ack()
                assert await counts(client, url) == (0, 0)

    asyncio.run(main())


def test_what_is_under_way_for_longer_than_its_time_out_does_not_come_again_until_the_source_ends(
    sqs: Sqs, name: str
) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (client, url):
            await client.send_message(QueueUrl=url, MessageBody="slow")
            async with taking(SqsSource(url, client=sqs.client(), visibility=1)) as source:
                first = await source.next()
                await asyncio.sleep(1.2)  # longer than the visibility time-out
                assert await counts(client, url) == (0, 1)
            async with taking(SqsSource(url, client=sqs.client())) as source:
                again = await source.next()
                assert again.id == first.id
                await again.ack()

    asyncio.run(main())


def test_a_message_whose_acknowledgement_was_not_heard_is_held_no_longer(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (client, url):
            await client.send_message(QueueUrl=url, MessageBody="tea")
            source = SqsSource(url, client=sqs.client(), visibility=1)
            own = await source._client.get()
            delete, own.delete_message = own.delete_message, _unheard
            async with taking(source) as taken:
                first = await taken.next()
                with pytest.raises(ConnectionError):
                    await first.ack()
                own.delete_message = delete
                again = await taken.next()
                assert again.id == first.id
                await again.ack()

    asyncio.run(main())


def test_what_is_rejected_often_enough_is_put_aside_by_the_redrive_policy(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, f"{name}-dead") as (client, dead):
            arn = (await client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"]))["Attributes"][
                "QueueArn"
            ]
            policy = msgspec.json.encode({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).decode()
            async with queue(sqs, name, RedrivePolicy=policy) as (_, url):
                await client.send_message(QueueUrl=url, MessageBody="bad")
                async with taking(SqsSource(url, client=sqs.client())) as source:
                    await (await source.next()).reject()
                    waiting = asyncio.create_task(source.next())
                    await becomes(lambda: _visible(client, dead), "it is among the dead")
                    waiting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await waiting
                assert [message["Body"] for message in await content(client, dead)] == ["bad"]

    asyncio.run(main())


def test_a_lost_connection_ends_a_source(sqs: Sqs, name: str) -> None:
    async def main() -> None:
        async with queue(sqs, name) as (_, url), proxy(("127.0.0.1", sqs.port)) as between:
            once = Config(retries={"total_max_attempts": 1})
            async with taking(SqsSource(url, client={**sqs.client(between.port), "config": once})) as source:
                waiting = asyncio.create_task(source.next())
                await becomes(lambda: _connections(between, 1), "it polls")
                between.cut()
                with pytest.raises((BotoCoreError, OSError)):
                    await waiting

    asyncio.run(main())


def test_a_message_is_held_for_a_second_or_more() -> None:
    with pytest.raises(UsageError, match="visibility"):
        SqsSource("http://x/q", visibility=0.5)


async def _unheard(**_: Any) -> None:
    raise ConnectionError("nobody hears")


async def _visible(client: Any, url: str) -> bool:
    return (await counts(client, url))[0] > 0


async def _connections(between: Proxy, count: int) -> bool:
    return len(between) == count
