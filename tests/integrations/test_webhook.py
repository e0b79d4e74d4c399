"""The sink for webhooks, against real servers on the loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from typing import Any

import msgspec
import pytest

from perdure.core.retry import Retry, RetryIn, decide
from perdure.errors import Undeliverable, UsageError
from perdure.integrations import Webhook, WebhookFailed, verify
from tests.integrations.items import item
from tests.integrations.receiver import answer, receiver

SECRET = "whsec_" + base64.b64encode(b"a secret of the two of them").decode()
OTHER = "whsec_" + base64.b64encode(b"the secret that comes after").decode()


async def deliver(webhook: Webhook, *items: Any) -> None:
    try:
        for one in items or (item(),):
            await webhook.deliver(one)
    finally:
        await webhook.close()


def test_a_delivery_is_one_signed_post_of_json() -> None:
    async def main() -> None:
        async with receiver() as there:
            await deliver(
                Webhook(there.url, SECRET, allow_private=True, headers={"X-From": "us"}), item({"n": [1, "ä"]})
            )
        (request,) = there.requests
        assert request.line == "POST /hook?token=hidden HTTP/1.1"
        assert msgspec.json.decode(request.body) == {"n": [1, "ä"]}
        assert request.headers["content-type"] == "application/json"
        assert request.headers["host"] == f"127.0.0.1:{there.port}"
        assert request.headers["x-from"] == "us"
        assert request.headers["webhook-id"] == "r1/ship"
        at = request.headers["webhook-timestamp"]
        assert abs(int(at) - time.time()) < 60
        content = b"r1/ship." + at.encode() + b"." + request.body
        code = hmac.new(b"a secret of the two of them", content, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == "v1," + base64.b64encode(code).decode()

    asyncio.run(main())


def test_while_a_secret_changes_either_one_verifies() -> None:
    async def main() -> None:
        async with receiver() as there:
            await deliver(Webhook(there.url, [SECRET, OTHER], allow_private=True))
        (request,) = there.requests
        assert verify(request.body, request.headers, SECRET) == "r1/ship"
        assert verify(request.body, request.headers, OTHER) == "r1/ship"

    asyncio.run(main())


def test_without_a_secret_nothing_is_signed() -> None:
    async def main() -> None:
        async with receiver() as there:
            await deliver(Webhook(there.url, allow_private=True))
        assert "webhook-signature" not in there.requests[0].headers
        assert there.requests[0].headers["webhook-id"] == "r1/ship"

    asyncio.run(main())


def test_a_key_of_any_characters_fits_a_header() -> None:
    async def main() -> None:
        async with receiver() as there:
            await deliver(
                Webhook(there.url, SECRET, allow_private=True), item(key="größe 1\r\nX: y"), item(key="gr%C3%B6ße")
            )
        ids = [request.headers["webhook-id"] for request in there.requests]
        assert ids == ["gr%C3%B6%C3%9Fe%201%0D%0AX:%20y", "gr%25C3%25B6%C3%9Fe"]

    asyncio.run(main())


def test_a_redirect_is_a_failure_and_is_not_followed() -> None:
    async def main() -> None:
        async with receiver() as elsewhere, receiver(answer(307, Location="")) as there:
            there.answers = [answer(307, Location=elsewhere.url)]
            with pytest.raises(WebhookFailed, match="redirects are not followed") as caught:
                await deliver(Webhook(there.url, SECRET, allow_private=True))
            assert caught.value.status == 307
        assert elsewhere.requests == []

    asyncio.run(main())


@pytest.mark.parametrize("status", [410, 413])
def test_gone_and_too_large_are_final(status: int) -> None:
    async def main() -> None:
        async with receiver(answer(status, b"no more")) as there:
            with pytest.raises(Undeliverable, match="no more"):
                await deliver(Webhook(there.url, allow_private=True))

    asyncio.run(main())


def test_a_server_is_given_the_time_it_asks_for() -> None:
    async def main() -> None:
        async with receiver(answer(503, b"later", Retry_After="120")) as there:
            with pytest.raises(WebhookFailed, match=r"127\.0\.0\.1 answered 503: later") as caught:
                await deliver(Webhook(there.url, allow_private=True))
        assert "hidden" not in str(caught.value)
        policy = Retry(attempts=9, retry_on=Exception, jitter=0)
        assert decide(policy, attempt=1, error=caught.value, random=0, now_us=0) == RetryIn(120)

    asyncio.run(main())


@pytest.mark.parametrize("status", [199 + 201, 404, 429, 500])
def test_every_other_status_is_an_error(status: int) -> None:
    async def main() -> None:
        async with receiver(answer(status)) as there:
            with pytest.raises(WebhookFailed) as caught:
                await deliver(Webhook(there.url, allow_private=True))
        assert (caught.value.status, caught.value.retry_after) == (status, None)

    asyncio.run(main())


def test_a_server_that_says_nothing_is_given_up() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with receiver(silent) as there:
            with pytest.raises(TimeoutError, match=r"did not answer within 0\.2 s"):
                await deliver(Webhook(there.url, allow_private=True, timeout=0.2))
            assert len(there.requests) == 1

    asyncio.run(main())


def test_of_an_endless_answer_only_the_beginning_is_read() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 Broken\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    async def main() -> None:
        async with receiver(endless) as there:
            with pytest.raises(WebhookFailed) as caught:
                await deliver(Webhook(there.url, allow_private=True))
        assert str(caught.value).endswith("answered 500: " + "x" * 300)
        assert sent < 50_000_000

    asyncio.run(main())


def test_an_answer_that_breaks_off_after_its_status_counts_by_its_status() -> None:
    async def broken(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 Fine\r\nContent-Length: 100\r\n\r\nfine")
        await writer.drain()

    async def main() -> None:
        async with receiver(broken) as there:
            await deliver(Webhook(there.url, allow_private=True))
        assert len(there.requests) == 1

    asyncio.run(main())


def test_a_connection_cut_before_the_answer_is_an_error_and_the_next_try_has_the_same_id() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def main() -> None:
        import httpx

        async with receiver(cut, answer(200)) as there:
            webhook = Webhook(there.url, SECRET, allow_private=True)
            with pytest.raises(httpx.TransportError):
                await webhook.deliver(item())
            await deliver(webhook, item(attempt=2))
        first, second = there.requests
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.body == second.body

    asyncio.run(main())


def test_one_connection_carries_many_deliveries_and_no_cookies() -> None:
    async def main() -> None:
        async with receiver(answer(200, b"ok", Set_Cookie="a=b")) as there:
            await deliver(Webhook(there.url, allow_private=True), *[item(key=str(n)) for n in range(5)])
        assert there.connections == 1
        assert [request.headers["webhook-id"] for request in there.requests] == ["0", "1", "2", "3", "4"]
        assert not any("cookie" in request.headers for request in there.requests)

    asyncio.run(main())


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with receiver() as there, receiver() as between:
            for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
                monkeypatch.setenv(name, f"http://127.0.0.1:{between.port}")
            monkeypatch.setenv("NO_PROXY", "")
            await deliver(Webhook(there.url, allow_private=True))
        assert (len(there.requests), between.requests) == (1, [])

    asyncio.run(main())


def test_it_can_be_used_again_after_it_was_closed() -> None:
    async def main() -> None:
        async with receiver() as there:
            webhook = Webhook(there.url, allow_private=True)
            await deliver(webhook)
            await deliver(webhook)
        assert (there.connections, len(there.requests)) == (2, 2)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "arguments", "says"),
    [
        ("ftp://example.com/", {}, "http"),
        ("https:///path", {}, "host"),
        ("https://example.com/", {"secret": "whsec_not base64"}, "base64"),
        ("https://example.com/", {"secret": []}, "empty list"),
        ("https://example.com/", {"headers": {"Webhook-Id": "x"}}, "webhook-id"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(url: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Webhook(url, **arguments)
