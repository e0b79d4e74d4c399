"""RabbitMQ, over aio-pika.

A delivery is published as a persistent, mandatory message, and is delivered once the broker has confirmed it: it is in
every queue that it was routed to, on disk if that queue is durable. One that no queue takes, or that a full queue
refuses, raises. (RabbitMQ knows no duplicates: where a confirmation was lost, the same message is there twice, under
the same message id.)

A source takes messages of one queue, acknowledges each when it is told to, and rejects without putting back: the
queue's dead-letter exchange has it then, if the queue has one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.core.durations import Duration
from perdure.core.limits import DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.errors import UsageError
from perdure.integrations.contents import body, bounded, decoded, incoming
from perdure.integrations.drivers import driver
from perdure.integrations.inputs import checked_name, checked_url, one_try, tries, whole_number
from perdure.integrations.sharing import Shared
from perdure.integrations.timeouts import answering
from perdure.runtime.sinks import DELIVERY_RETRY, Incoming, Outgoing, Sink, Source

if TYPE_CHECKING:
    from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractMessage

EXTRA: Final = "rabbitmq"
WHAT: Final = "RabbitMQ"

SCHEMES: Final = ("amqp", "amqps")

SHORT_BYTES: Final = 255
"""What a short string of AMQP holds: an id, and a name."""

PREFETCH_MAX: Final = 65_535
"""What AMQP can count."""

CLOSE_S: Final = 1.0
"""How long a broker may take to say good-bye."""

PARTITION_HEADER: Final = "x-partition"


class RabbitSink(Sink):
    """Publishes each delivery to an exchange.

    The default exchange, "", takes the queue's name as routing key. The message's id is the delivery's key (past 255
    characters, its beginning and a digest), its header `x-partition` the partition.

    Needs aio-pika: `pip install 'perdure[rabbitmq]'`.
    """

    def __init__(
        self,
        url: str,
        exchange: str = "",
        *,
        routing_key: str = "",
        timeout: Duration = DELIVERY_TIMEOUT_S,
        retry: Retry | int = DELIVERY_RETRY,
    ) -> None:
        self._pika = driver("aio_pika", extra=EXTRA, what=WHAT)
        if not exchange and not routing_key:
            raise UsageError("The default exchange takes a queue's name as routing key; give RabbitSink one.")
        self._url = _address(url)
        self._exchange = checked_name(exchange, what="An exchange's name", bytes_max=SHORT_BYTES, empty=True)
        self._routing_key = checked_name(routing_key, what="A routing key", bytes_max=SHORT_BYTES, empty=True)
        self._shared = Shared(self._connect, _close, is_lost=lambda line: line.channel.is_closed)
        self.retry, self.timeout_s = tries(retry), one_try(timeout)

    async def deliver(self, item: Outgoing) -> None:
        """Publish it, and wait until the broker has confirmed it. Raises what aio-pika raises: `PublishError` where
        nothing took it, `DeliveryError` where a queue refused it."""
        with answering(WHAT, self.timeout_s):
            await self._publish(item)

    async def _publish(self, item: Outgoing) -> None:
        async with self._shared.use() as (_, channel):
            if self._exchange:
                exchange = await channel.get_exchange(self._exchange, ensure=False)
            else:
                exchange = channel.default_exchange
            await exchange.publish(self._message(item), self._routing_key, mandatory=True, timeout=self.timeout_s)

    async def close(self) -> None:
        """Let go of the connection."""
        await self._shared.close()

    def _message(self, item: Outgoing) -> AbstractMessage:
        message: AbstractMessage = self._pika.Message(
            body(item),
            content_type="application/json",
            delivery_mode=self._pika.DeliveryMode.PERSISTENT,
            message_id=bounded(item.key, chars=SHORT_BYTES),
            timestamp=item.created_at,
            headers={PARTITION_HEADER: item.partition},
        )
        return message

    async def _connect(self) -> _Line:
        connection = await self._pika.connect(self._url, timeout=self.timeout_s)
        try:
            return _Line(connection, await connection.channel(publisher_confirms=True, on_return_raises=True))
        except BaseException:
            await _close_connection(connection)
            raise


class _Line(NamedTuple):
    """A channel, on a connection of its own."""

    connection: AbstractConnection
    channel: AbstractChannel


async def _close(line: _Line) -> None:
    await _close_connection(line.connection)


async def _close_connection(connection: AbstractConnection) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await connection.close()


class RabbitSource(Source):
    """Takes the messages of one queue, which must exist.

    A message is known by its message id. One without cannot be told from a new one when it comes again, so it is
    rejected unless `identify` finds an id in it (a function of the driver's message; None finds none).

    Needs aio-pika: `pip install 'perdure[rabbitmq]'`.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        prefetch: int = Source.window,
        identify: Callable[[AbstractIncomingMessage], str | None] | None = None,
    ) -> None:
        self._pika = driver("aio_pika", extra=EXTRA, what=WHAT)
        if identify is not None and not callable(identify):
            raise UsageError("identify is a function of the driver's message, which finds its id.")
        self._url = _address(url)
        self._queue = checked_name(queue, what="A queue's name", bytes_max=SHORT_BYTES)
        self._prefetch = self.window = whole_number(
            prefetch, what="prefetch, of messages under way,", most=PREFETCH_MAX
        )
        self._identify = identify

    async def receive(self) -> AsyncIterator[Incoming]:
        """Its messages, oldest first. What is not acknowledged when this ends comes again; acknowledging it then
        raises."""
        async with await self._pika.connect(self._url) as connection:
            channel: AbstractChannel = await connection.channel()
            await channel.set_qos(prefetch_count=self._prefetch)
            arrived = await _consumed(channel, self._queue)
            while (message := await arrived.get()) is not None:
                yield self._incoming(message)
        raise ConnectionError(f"RabbitMQ no longer sends messages of the queue {self._queue}.")

    def _incoming(self, message: AbstractIncomingMessage) -> Incoming:
        async def reject() -> None:
            await message.reject(requeue=False)

        def make() -> Incoming:
            return Incoming(
                id=self._id(message),
                data=decoded(message.body),
                headers={name: _text(value) for name, value in message.headers.items()},
                ack=message.ack,
                reject=reject,
            )

        return incoming(make, name=f"number {message.delivery_tag}", reject=reject)

    def _id(self, message: AbstractIncomingMessage) -> str:
        id = message.message_id or (self._identify(message) if self._identify is not None else None)
        if not id:
            raise UsageError("The message has no id; identify=, of RabbitSource, is to find one in it.")
        return id


async def _consumed(channel: AbstractChannel, name: str) -> asyncio.Queue[AbstractIncomingMessage | None]:
    """What comes out of a queue, and None at its end: the channel is closed, or the broker no longer sends (the queue
    was deleted, or has moved to another node), which the driver's own iterator does not notice."""
    arrived: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()  # as long as the prefetch count

    def end(*_: object) -> None:
        arrived.put_nowait(None)

    queue = await channel.get_queue(name)
    channel.close_callbacks.add(end)
    (await channel.get_underlay_channel()).on_consumer_cancel_callbacks.add(end)
    await queue.consume(arrived.put)
    return arrived


def _address(url: str) -> str:
    return checked_url(url, SCHEMES, what="The URL of RabbitMQ", host=False)  # none is this machine


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
