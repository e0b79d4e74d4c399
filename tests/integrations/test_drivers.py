"""Adapters without their drivers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import UsageError
from perdure.integrations import (
    NatsSink,
    NatsSource,
    PostgresNotify,
    RabbitSink,
    RabbitSource,
    SqsSink,
    SqsSource,
    Webhook,
)
from perdure.integrations.contents import bounded, decoded, visible

DRIVERS = ("aio_pika", "aiobotocore", "asyncpg", "botocore", "httpx", "nats")


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("httpx", "webhook", lambda: Webhook("https://example.com/")),
        ("aio_pika", "rabbitmq", lambda: RabbitSink("amqp://x/", routing_key="q")),
        ("aio_pika", "rabbitmq", lambda: RabbitSource("amqp://x/", "q")),
        ("aiobotocore", "sqs", lambda: SqsSink("https://sqs/1/q")),
        ("aiobotocore", "sqs", lambda: SqsSource("https://sqs/1/q")),
        ("nats", "nats", lambda: NatsSink("nats://x", "s")),
        ("nats", "nats", lambda: NatsSource("nats://x", "s", durable="w")),
        ("asyncpg", "postgres", lambda: PostgresNotify("postgresql://x", "c")),
    ],
)
def test_an_adapter_without_its_driver_names_the_extra(
    module: str, extra: str, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Without(module), *sys.meta_path])
    with pytest.raises(UsageError, match=rf"pip install 'perdure\[{extra}\]'"):
        make()


class _Without:
    """An importer that does not find a module."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self.module:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_importing_the_integrations_loads_no_driver() -> None:
    script = "import perdure.integrations, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert sorted(set(DRIVERS).intersection(loaded)) == []


def test_no_two_keys_are_one_id() -> None:
    keys = ["a b", "a%20b", "a%2520b", "ä", "%C3%A4", "", "\ud800", "x" * 200, "x" * 201]
    assert len({visible(key) for key in keys}) == len({bounded(key, chars=128) for key in keys}) == len(keys)
    assert all(len(bounded(key, chars=128)) <= 128 for key in keys)


def test_content_is_json_or_text_or_bytes() -> None:
    assert [decoded(content) for content in (b'{"a":1}', b"a b", b"\xff", b"")] == [{"a": 1}, "a b", b"\xff", ""]
