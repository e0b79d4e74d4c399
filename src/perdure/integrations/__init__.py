"""Sinks and sources for what others run: webhooks, RabbitMQ, SQS, NATS, Postgres's NOTIFY.

    from perdure.integrations import RabbitSink

    app.sink("orders", RabbitSink("amqp://...", routing_key="orders"))

Each is a small adapter over its field's client, which is imported when the adapter is made, and comes with an extra:
`pip install 'perdure[rabbitmq]'`. A delivery's body is the JSON of its payload; its key is the message's id there.

A sink returns once the other side has said that it has the delivery for good. Where that word is lost, the delivery is
handed over again, under the same key. A source gives each message with the id that its sender, or else its broker, gave
it, and acknowledges it when it is told to: what was not acknowledged comes again.

None of them reconnects behind your back. A lost connection raises; the next delivery, or the next `receive()`, makes a
new one.
"""

from __future__ import annotations

from perdure.integrations.nats import NatsSink, NatsSource
from perdure.integrations.notify import PostgresNotify
from perdure.integrations.rabbitmq import RabbitSink, RabbitSource
from perdure.integrations.signatures import InvalidSignature, verify
from perdure.integrations.sqs import SqsSink, SqsSource
from perdure.integrations.webhook import AddressRefused, Webhook, WebhookFailed

__all__ = [
    "AddressRefused",
    "InvalidSignature",
    "NatsSink",
    "NatsSource",
    "PostgresNotify",
    "RabbitSink",
    "RabbitSource",
    "SqsSink",
    "SqsSource",
    "Webhook",
    "WebhookFailed",
    "verify",
]
