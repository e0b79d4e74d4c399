"""NATS, with JetStream, over nats-py.

A delivery is published with its key as `Nats-Msg-Id`, and is delivered once a stream has said that it has stored it.
What is published again within the stream's duplicate window (two minutes, unless the stream says otherwise) is stored
once.

A source pulls messages for a durable consumer, says again and again that it still works on what it has, and waits until
the server has taken an acknowledgement. What is rejected is terminated: the server does not send it again, and tells
its advisory subject (`$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.core.durations import Duration
from perdure.core.limits import DELIVERY_TIMEOUT_S
from perdure.core.retry import Retry
from perdure.errors import Undeliverable
from perdure.integrations.contents import body, decoded, incoming, visible
from perdure.integrations.drivers import driver
from perdure.integrations.holding import Holding
from perdure.integrations.inputs import checked_name, checked_url, driver_options, one_try, tries
from perdure.integrations.sharing import Shared
from perdure.integrations.timeouts import answering
from perdure.runtime.sinks import DELIVERY_RETRY, Incoming, Outgoing, Sink, Source
from perdure.telemetry import logger

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

T = TypeVar("T")

EXTRA: Final = "nats"
WHAT: Final = "NATS"

ID_HEADER: Final = "Nats-Msg-Id"
PARTITION_HEADER: Final = "Perdure-Partition"

BATCH_MAX: Final = 50
"""Messages asked for at once."""

POLL_S: Final = 5.0
"""How long one request for messages is open."""

PATH: Final = ".*>/\\"
"""What is in no name of a stream or a consumer."""

ACK_S: Final = 5.0
"""How long the server may take to say that it has taken an acknowledgement."""

ACK_WAIT_S: Final = 30.0
"""How long a consumer waits for an acknowledgement, unless it says otherwise."""

RENEW_SHARE: Final = 1 / 3
"""Of the time that the consumer gives a message: when one in our hands is renewed."""

PING_S: Final = 20
"""How often the server is asked whether it is still there; it is lost when it has not answered twice."""

CONNECT_S: Final = 2
"""How long a server may take to say hello."""

CLOSE_S: Final = 1.0
"""How long a server may take to say good-bye."""

SCHEMES: Final = ("nats", "tls", "ws", "wss")

OWN_OPTIONS: Final = ("servers", "allow_reconnect", "closed_cb")
"""Arguments of `nats.connect` that are not the user's."""


class NatsSink(Sink):
    """Publishes each delivery to a subject that a JetStream stream listens to.

    `stream`, if it is given, is the only one that may take it. `client` has further arguments of `nats.connect`.

    Needs nats-py: `pip install 'perdure[nats]'`.
    """

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        stream: str | None = None,
        client: Mapping[str, Any] | None = None,
        timeout: Duration = DELIVERY_TIMEOUT_S,
        retry: Retry | int = DELIVERY_RETRY,
    ) -> None:
        self._connector = _Connector(url, client)
        self._errors = driver("nats.errors", extra=EXTRA, what=WHAT)
        self._subject = checked_name(subject, what="A subject to publish to", without="*>")
        self._stream = _stream_name(stream)
        self._shared = Shared(self._connector.connect, _Line.close, is_lost=lambda line: line.lost.is_set())
        self.retry, self.timeout_s = tries(retry), one_try(timeout)

    async def deliver(self, item: Outgoing) -> None:
        """Publish it, and wait until a stream has stored it. Raises what nats-py raises: `NoStreamResponseError` where
        no stream listens, `APIError` where a full one refuses."""
        headers = {ID_HEADER: visible(item.key), PARTITION_HEADER: visible(item.partition)}
        async with self._shared.use() as line:
            stored = line.client.jetstream().publish(
                self._subject, body(item), stream=self._stream, headers=headers, timeout=self.timeout_s
            )
            try:
                await line.during(stored)
            except self._errors.MaxPayloadError as error:
                raise Undeliverable("NATS does not take a message of this size.") from error

    async def close(self) -> None:
        """Let go of the connection."""
        await self._shared.close()


class NatsSource(Source):
    """Takes the messages of a subject for a durable consumer, which is made if it does not exist.

    A message is known by its header `Nats-Msg-Id`; by its place in its stream where it has none. `stream` names the
    stream where several have the subject; `client` has further arguments of `nats.connect`.

    Needs nats-py: `pip install 'perdure[nats]'`.
    """

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        durable: str,
        stream: str | None = None,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self._connector = _Connector(url, client)
        self._errors = driver("nats.errors", extra=EXTRA, what=WHAT)
        self._subject = checked_name(subject, what="A subject", without=" ")
        self._durable = checked_name(
            durable, what="durable, the name of the consumer that the server knows", without=PATH
        )
        self._stream = _stream_name(stream)

    async def receive(self) -> AsyncIterator[Incoming]:
        """Its messages, in the stream's order. What is not acknowledged when this ends comes again; acknowledging it
        then raises."""
        line = await self._connector.connect()
        try:
            stream = line.client.jetstream()
            consumer = await line.during(
                stream.pull_subscribe(self._subject, durable=self._durable, stream=self._stream)
            )
            info = await line.during(consumer.consumer_info())
            holding: Holding[Msg] = Holding(_renew, every_s=(info.config.ack_wait or ACK_WAIT_S) * RENEW_SHARE)
            async with holding.renewed():
                while True:
                    holding.check()
                    try:
                        messages = await line.during(consumer.fetch(BATCH_MAX, timeout=POLL_S))
                    except self._errors.TimeoutError:
                        continue
                    for message in messages:
                        holding.add(message.reply, message)
                    for message in messages:
                        yield _incoming(message, holding, line)
        finally:
            await line.close()


class _Connector:
    """Makes connections."""

    def __init__(self, url: str, client: Mapping[str, Any] | None) -> None:
        self._nats = driver("nats", extra=EXTRA, what=WHAT)
        self._url = checked_url(url, SCHEMES, what="The URL of NATS")
        self._options = driver_options(client, own=OWN_OPTIONS, what=WHAT)

    async def connect(self) -> _Line:
        lost = asyncio.Event()

        async def closed() -> None:
            lost.set()

        usual = {"error_cb": _log, "ping_interval": PING_S, "connect_timeout": CONNECT_S}
        fixed = {"allow_reconnect": False, "closed_cb": closed}
        options: dict[str, Any] = {**usual, **self._options, **fixed}
        line = _Line(self._nats.NATS(), lost)
        try:
            with answering(WHAT, options["connect_timeout"]):
                await line.client.connect(self._url, **options)
        except BaseException:
            await line.close()
            raise
        return line


class _Line:
    """A connection that does not come back by itself: once it is lost, another is made."""

    def __init__(self, client: Client, lost: asyncio.Event) -> None:
        self.client = client
        self.lost = lost

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self.client.close()

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives. Raises `ConnectionError` as soon as the connection is lost: the driver lets whoever
        waits for an answer wait on."""
        working = asyncio.create_task(work, name="nats")
        losing = asyncio.create_task(self.lost.wait(), name="nats lost")
        try:
            await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ConnectionError("The connection to NATS is lost.")
        finally:
            working.cancel()
            losing.cancel()
            await asyncio.gather(working, losing, return_exceptions=True)


def _stream_name(stream: str | None) -> str | None:
    return None if stream is None else checked_name(stream, what="A stream's name", without=PATH)


async def _log(error: Exception) -> None:
    logger.debug("nats: %s", error)


async def _renew(messages: list[Msg]) -> None:
    for message in messages:
        await message.in_progress()


def _incoming(message: Msg, holding: Holding[Msg], line: _Line) -> Incoming:
    async def ack() -> None:
        try:
            await line.during(message.ack_sync(timeout=ACK_S))
        finally:  # what was not heard comes again, if it is held no longer
            holding.drop(message.reply)

    async def reject() -> None:
        try:
            await message.term()
        finally:
            holding.drop(message.reply)

    def make() -> Incoming:
        place = message.metadata
        headers = dict(message.headers or {})
        return Incoming(
            id=headers.get(ID_HEADER) or f"{place.stream}:{place.sequence.stream}",
            data=decoded(message.data),
            headers=headers,
            ack=ack,
            reject=reject,
        )

    return incoming(make, name=message.reply, reject=reject)
