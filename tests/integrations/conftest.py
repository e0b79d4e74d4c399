"""The brokers of these tests: one of each for a test process, started at its first use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.support import brokers

B = TypeVar("B", brokers.Rabbit, brokers.Nats, brokers.Sqs)

_names = itertools.count(1)


@pytest.fixture(scope="session")
def rabbit() -> Iterator[brokers.Rabbit]:
    """A RabbitMQ."""
    yield from _running(brokers.Rabbit)


@pytest.fixture(scope="session")
def nats_server() -> Iterator[brokers.Nats]:
    """A NATS with JetStream."""
    yield from _running(brokers.Nats)


@pytest.fixture(scope="session")
def sqs() -> Iterator[brokers.Sqs]:
    """An SQS."""
    yield from _running(brokers.Sqs)


@pytest.fixture
def name() -> str:
    """A name for a queue that nobody has used."""
    return f"q{next(_names)}"


def _running(kind: type[B]) -> Iterator[B]:
    try:
        broker = kind()
    except brokers.Missing as why:
        pytest.skip(str(why))
    try:
        broker.start()
        yield broker
    except brokers.Missing as why:
        pytest.skip(str(why))
    finally:
        broker.destroy()
