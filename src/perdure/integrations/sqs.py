"""Amazon SQS, over aiobotocore.

A delivery is sent with its key in the attribute `perdure-key`. A FIFO queue (its URL ends in `.fifo`) gets the
partition as the group, whose messages it keeps in order, and the key as the deduplication id: what is sent again within
five minutes is taken once. After that, and in a standard queue at any time, the same message may be there twice;
whoever receives it knows it by the attribute.

A source polls, tells SQS again and again that it still works on what it has, and deletes what is acknowledged. What is
rejected becomes visible again, soon at first and then later and later, until the queue's redrive policy has counted
enough receipts and puts it aside. (A queue without such a policy keeps sending it.)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any, Final

from perdure.core.durations import Duration, seconds
from perdure.core.limits import DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.errors import Undeliverable, UsageError
from perdure.integrations.contents import body, bounded, decoded, incoming
from perdure.integrations.drivers import driver
from perdure.integrations.holding import Holding
from perdure.integrations.inputs import checked_url, driver_options, one_try, tries
from perdure.runtime.sinks import DELIVERY_RETRY, Incoming, Outgoing, Sink, Source

EXTRA: Final = "sqs"
WHAT: Final = "SQS"

KEY_ATTRIBUTE: Final = "perdure-key"
PARTITION_ATTRIBUTE: Final = "perdure-partition"

ID_CHARS: Final = 128
"""What a deduplication id, and a group's name, may have."""

KEY_CHARS: Final = 1024
"""Of an attribute's value: it counts as part of the message."""

NO_PARTITION: Final = "-"
"""The group of what has no partition; a group must have a name."""

BATCH_MAX: Final = 10
"""Messages in one request."""

POLL_S: Final = 20
"""How long SQS waits for a message before it answers that there is none; its longest."""

VISIBILITY_S_MAX: Final = 43_200
"""How long SQS lets a message be held."""

REFUSED: Final = {"InvalidMessageContents", "AWS.SimpleQueueService.InvalidMessageContents"}
"""Codes of SQS for characters that it takes in no message."""

TOO_LARGE: Final = "Message must be shorter than"
"""What SQS says of a message over its limit, or the queue's; the code is one that it has for other mistakes too."""


class _Client:
    """A client of SQS, made at its first use."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self._session = _session(driver("aiobotocore.session", extra=EXTRA, what=WHAT))
        self._options = driver_options(given, own=("service_name",), what=WHAT)
        self._opening = asyncio.Lock()
        self._stack: contextlib.AsyncExitStack | None = None
        self._client: Any = None

    async def get(self) -> Any:
        async with self._opening:
            if self._client is None:
                stack = contextlib.AsyncExitStack()
                context = self._session.create_client("sqs", **self._options)
                self._client = await stack.enter_async_context(context)
                self._stack = stack
            return self._client

    async def close(self) -> None:
        async with self._opening:
            stack, self._stack, self._client = self._stack, None, None
            if stack is not None:
                await stack.aclose()


def _address(queue_url: str) -> str:
    return checked_url(queue_url, ("https", "http"), what="The URL of a queue of SQS (not its name or ARN)")


@cache
def _session(botocore: Any) -> Any:
    """One for the process: it takes a third of a second to read what AWS is."""
    return botocore.get_session()


class SqsSink(Sink):
    """Sends each delivery to a queue.

    `client` has further arguments of botocore's `create_client` (`region_name`, `endpoint_url`, credentials); what it
    does not say comes from the environment, as always with AWS.

    Needs aiobotocore: `pip install 'perdure[sqs]'`.
    """

    def __init__(
        self,
        queue_url: str,
        *,
        client: Mapping[str, Any] | None = None,
        timeout: Duration = DELIVERY_TIMEOUT_S,
        retry: Retry | int = DELIVERY_RETRY,
    ) -> None:
        self._client = _Client(client)
        self._errors = driver("botocore.exceptions", extra=EXTRA, what=WHAT)
        self._queue_url = _address(queue_url)
        self.retry, self.timeout_s = tries(retry), one_try(timeout)

    async def deliver(self, item: Outgoing) -> None:
        """Send it. Raises what botocore raises."""
        content = body(item)
        client = await self._client.get()
        try:
            await client.send_message(QueueUrl=self._queue_url, MessageBody=content.decode(), **self._terms(item))
        except self._errors.ClientError as error:
            said = error.response.get("Error", {})
            if said.get("Code") in REFUSED or TOO_LARGE in said.get("Message", ""):
                raise Undeliverable(f"SQS does not take this message: {error}", code=said.get("Code")) from error
            raise

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()

    def _terms(self, item: Outgoing) -> dict[str, Any]:
        """What is said about the message."""
        attributes = {KEY_ATTRIBUTE: bounded(item.key, chars=KEY_CHARS), PARTITION_ATTRIBUTE: item.partition}
        terms: dict[str, Any] = {
            "MessageAttributes": {
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items() if value
            }
        }
        if self._queue_url.endswith(".fifo"):
            terms["MessageGroupId"] = bounded(item.partition, chars=ID_CHARS) or NO_PARTITION
            terms["MessageDeduplicationId"] = bounded(item.key, chars=ID_CHARS)
        return terms


class SqsSource(Source):
    """Receives the messages of a queue.

    A message is known by its attribute `perdure-key`, which it has from a `SqsSink`; by the id that SQS gave it where
    it has none. It is held for `visibility` at a time, and for as long as it is under way.

    `client` is as `SqsSink`'s. Needs aiobotocore: `pip install 'perdure[sqs]'`.
    """

    def __init__(self, queue_url: str, *, client: Mapping[str, Any] | None = None, visibility: Duration = 60.0) -> None:
        self._client = _Client(client)
        self._queue_url = _address(queue_url)
        self._visibility_s = int(seconds(visibility, what="a time-out"))
        if not 1 <= self._visibility_s <= VISIBILITY_S_MAX:
            raise UsageError("visibility is from a second to 12 hours: who takes a message holds it for so long.")

    async def receive(self) -> AsyncIterator[Incoming]:
        """Its messages. What is not acknowledged when this ends comes again."""
        client = await self._client.get()
        holding = Holding(self._extend, every_s=self._visibility_s / 3, at_once=BATCH_MAX)
        async with holding.renewed():
            while True:
                holding.check()
                answer = await client.receive_message(
                    QueueUrl=self._queue_url,
                    MaxNumberOfMessages=BATCH_MAX,
                    WaitTimeSeconds=POLL_S,
                    VisibilityTimeout=self._visibility_s,
                    MessageAttributeNames=["All"],
                    AttributeNames=["ApproximateReceiveCount"],
                )
                messages = answer.get("Messages", [])
                for message in messages:
                    holding.add(message["ReceiptHandle"], message["ReceiptHandle"])
                for message in messages:
                    yield self._incoming(message, holding)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()

    def _incoming(self, message: dict[str, Any], holding: Holding[str]) -> Incoming:
        receipt = message["ReceiptHandle"]
        received = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))

        async def ack() -> None:
            try:
                client = await self._client.get()
                await client.delete_message(QueueUrl=self._queue_url, ReceiptHandle=receipt)
            finally:  # what was not heard comes again, if it is held no longer
                holding.drop(receipt)

        async def reject() -> None:
            holding.drop(receipt)
            client = await self._client.get()
            pause_s = min(2 ** min(received - 1, 16) - 1, self._visibility_s)
            await client.change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt, VisibilityTimeout=pause_s
            )

        def make() -> Incoming:
            attributes = {
                name: value["StringValue"]
                for name, value in message.get("MessageAttributes", {}).items()
                if "StringValue" in value
            }
            return Incoming(
                id=attributes.get(KEY_ATTRIBUTE) or message["MessageId"],
                data=decoded(message["Body"].encode()),
                headers=attributes,
                ack=ack,
                reject=reject,
            )

        return incoming(make, name=message["MessageId"], reject=reject)

    async def _extend(self, receipts: list[str]) -> None:
        """Hold a batch of them for longer. What SQS no longer counts as ours is among its answer's failures: it comes
        again by itself."""
        client = await self._client.get()
        entries = [
            {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": self._visibility_s}
            for number, receipt in enumerate(receipts)
        ]
        await client.change_message_visibility_batch(QueueUrl=self._queue_url, Entries=entries)
