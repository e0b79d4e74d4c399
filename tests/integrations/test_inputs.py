"""What sinks and sources are made with: what cannot work is told when they are made, and shows no secret."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, Sink
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
    verify,
)
from perdure.runtime.sinks import DELIVERY_RETRY

Make = Callable[..., Any]

QUEUE_URL = "https://sqs.eu-central-1.amazonaws.com/1/q"
SECRET = "whsec_" + base64.b64encode(b"a secret of the two of them").decode()

SINKS: dict[str, Make] = {
    "webhook": lambda **given: Webhook("https://example.com/", **given),
    "rabbit": lambda **given: RabbitSink("amqp://x/", routing_key="q", **given),
    "sqs": lambda **given: SqsSink(QUEUE_URL, **given),
    "nats": lambda **given: NatsSink("nats://x", "s", **given),
    "notify": lambda **given: PostgresNotify("postgresql://x", "c", **given),
}

ADDRESSED: dict[str, tuple[str, Make]] = {
    "webhook": ("https", lambda url: Webhook(url)),
    "rabbit sink": ("amqp", lambda url: RabbitSink(url, routing_key="q")),
    "rabbit source": ("amqp", lambda url: RabbitSource(url, "q")),
    "sqs sink": ("https", lambda url: SqsSink(url)),
    "sqs source": ("https", lambda url: SqsSource(url)),
    "nats sink": ("nats", lambda url: NatsSink(url, "s")),
    "nats source": ("nats", lambda url: NatsSource(url, "s", durable="w")),
    "notify": ("postgresql", lambda url: PostgresNotify(url, "c")),
}

sinks = pytest.mark.parametrize("make", SINKS.values(), ids=list(SINKS))
addressed = pytest.mark.parametrize(("scheme", "make"), ADDRESSED.values(), ids=list(ADDRESSED))


@addressed
def test_a_url_of_another_scheme_is_refused_with_the_ones_there_are(scheme: str, make: Make) -> None:
    with pytest.raises(UsageError, match=f"{scheme}://.*'mysql'") as caught:
        make("mysql://me:opensesame@box/app")
    assert "opensesame" not in str(caught.value)


@addressed
@pytest.mark.parametrize("url", ["example.com/x", "box:5672", "", "arn:aws:sqs:eu-central-1:1:q", "//box"])
def test_a_url_without_a_scheme_is_refused(scheme: str, make: Make, url: str) -> None:
    with pytest.raises(UsageError, match=f"{scheme}://.*no scheme"):
        make(url)


@addressed
@pytest.mark.parametrize("url", [None, 7, b"amqp://x/", ["nats://x"]])
def test_a_url_that_is_no_text_is_refused(scheme: str, make: Make, url: object) -> None:
    with pytest.raises(UsageError, match=f"{scheme}://.*not a {type(url).__name__}"):
        make(url)


@addressed
def test_a_url_with_a_blank_in_it_is_refused(scheme: str, make: Make) -> None:
    with pytest.raises(UsageError, match="a space"):
        make(f"{scheme}://box/x\n")


@pytest.mark.parametrize("kind", ["webhook", "sqs sink", "sqs source", "nats sink", "nats source"])
def test_a_url_without_a_host_is_refused_where_there_is_no_usual_one(kind: str) -> None:
    scheme, make = ADDRESSED[kind]
    with pytest.raises(UsageError, match="host"):
        make(f"{scheme}:///path")


@pytest.mark.parametrize(
    "make",
    [
        lambda: RabbitSink("amqps://", routing_key="q"),
        lambda: RabbitSource("AMQP://x", "q"),
        lambda: SqsSink("http://localhost:4566/1/q"),
        lambda: NatsSink("tls://x:4222", "s"),
        lambda: NatsSource("wss://x", "orders.>", durable="w", stream="orders"),
        lambda: PostgresNotify("postgres:///app?host=/run/postgresql", "c"),
        lambda: Webhook("HTTPS://example.com"),
    ],
)
def test_what_a_driver_takes_is_taken(make: Make) -> None:
    make()


@pytest.mark.parametrize("url", ["https://example.com:99999/", "https://[::1/", "https://exa_mple\udc80.com/"])
def test_a_webhook_whose_url_nobody_can_call_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="URL"):
        Webhook(url)


@sinks
def test_a_number_of_tries_is_a_retry_with_the_usual_pauses(make: Make) -> None:
    sink: Sink = make(retry=5)
    assert sink.retry == Retry(attempts=5, delay_s=DELIVERY_RETRY.delay_s, max_delay_s=DELIVERY_RETRY.max_delay_s)
    assert make(retry=Retry(attempts=5)).retry == Retry(attempts=5)


@sinks
@pytest.mark.parametrize("retry", [0, -1, True, 2.5, "3", None])
def test_a_retry_that_is_none_is_refused(make: Make, retry: object) -> None:
    with pytest.raises(UsageError, match=r"retry|attempts"):
        make(retry=retry)


@sinks
def test_a_time_out_is_a_span_of_time(make: Make) -> None:
    assert make(timeout="1m").timeout_s == pytest.approx(60, abs=1.5)
    assert make(timeout=timedelta(minutes=1)).timeout_s == pytest.approx(60, abs=1.5)


@sinks
@pytest.mark.parametrize("timeout", [0, -1, "soon", None, True, float("nan"), float("inf")])
def test_a_time_out_that_no_try_can_keep_is_refused(make: Make, timeout: object) -> None:
    with pytest.raises(UsageError, match="time-out"):
        make(timeout=timeout)


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        (SECRET.encode(), "not a bytes"),
        ([SECRET.encode()], "not a bytes"),
        ({"whsec": SECRET}, "not a dict"),
        (7, "not a int"),
        ("", "0 bytes"),
        ("whsec_" + base64.b64encode(b"x" * 15).decode(), "15 bytes"),
        ([SECRET, "whsec_c2VjcmV0"], "6 bytes"),
        ("opensesame!", "base64"),
    ],
)
def test_a_secret_that_is_none_or_can_be_guessed_is_refused_and_not_shown(secret: Any, says: str) -> None:
    for use in (lambda: Webhook("https://example.com/", secret), lambda: verify(b"", _headers(), secret, now_s=0)):
        with pytest.raises(UsageError, match=says) as caught:
            use()
        assert "c2VjcmV0" not in str(caught.value) and "sesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([("a", "b")], "dict of text"),
        ("a: b", "dict of text"),
        ({"a": 1}, "'a'"),
        ({b"a": "b"}, "b'a'"),
        ({"a b": "c"}, "'a b'"),
        ({"": "c"}, "called ''"),
        ({"a": "opensesame\r\nb: c"}, "header a"),
        ({"a": " opensesame"}, "header a"),
        ({"a": "opensesame ä"}, "header a"),
        ({"A": "1", "a": "2"}, "twice"),
        ({"Webhook-Id": "x"}, "own"),
        ({"Transfer-Encoding": "chunked"}, "own"),
    ],
)
def test_headers_that_http_does_not_take_are_refused_and_not_shown(headers: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Webhook("https://example.com/", headers=headers)
    assert "sesame" not in str(caught.value)


def test_the_check_of_certificates_is_not_turned_off_by_a_false() -> None:
    unsafe: Any = False
    with pytest.raises(UsageError, match="SSLContext"):
        Webhook("https://example.com/", tls=unsafe)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RabbitSink("amqp://x/", 7), "exchange"),  # type: ignore[arg-type]
        (lambda: RabbitSink("amqp://x/", routing_key="ä" * 128), "256 bytes"),
        (lambda: RabbitSource("amqp://x/", ""), "queue"),
        (lambda: RabbitSource("amqp://x/", "q", prefetch=True), "prefetch"),
        (lambda: RabbitSource("amqp://x/", "q", prefetch=65_536), "prefetch"),
        (lambda: RabbitSource("amqp://x/", "q", identify="id"), "identify"),  # type: ignore[arg-type]
        (lambda: SqsSource(QUEUE_URL, visibility="13h"), "visibility"),
        (lambda: SqsSink(QUEUE_URL, client=["eu"]), "client"),  # type: ignore[arg-type]
        (lambda: SqsSink(QUEUE_URL, client={"service_name": "sns"}), "service_name"),
        (lambda: NatsSink("nats://x", "orders.*"), r"'\*'"),
        (lambda: NatsSink("nats://x", "an order"), "' '"),
        (lambda: NatsSink("nats://x", ""), "subject"),
        (lambda: NatsSink("nats://x", "s", stream="a.b"), "stream"),
        (lambda: NatsSource("nats://x", "s", durable="a.b"), "durable"),
        (lambda: NatsSource("nats://x", "s", durable="w", client={"allow_reconnect": True}), "allow_reconnect"),
        (lambda: NatsSource("nats://x", "s", durable="w", client={1: 2}), "client"),  # type: ignore[dict-item]
        (lambda: PostgresNotify("postgresql://x", 7), "channel"),  # type: ignore[arg-type]
        (lambda: PostgresNotify("postgresql://x", "\udc80"), "channel"),
    ],
)
def test_what_a_broker_does_not_take_is_refused(make: Make, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


@pytest.mark.parametrize(
    ("payload", "headers", "says"),
    [("{}", {}, "payload"), ({}, {}, "payload"), (b"{}", [(b"a", b"b")], "headers"), (b"{}", {b"a": b"b"}, "headers")],
)
def test_who_receives_a_webhook_is_told_what_to_hand_over(payload: Any, headers: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        verify(payload, headers, SECRET)


def _headers() -> dict[str, str]:
    return {"webhook-id": "a", "webhook-timestamp": "0", "webhook-signature": "v1,AAAA"}
