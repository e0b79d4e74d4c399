"""Webhooks: a delivery is one POST of JSON, signed as https://www.standardwebhooks.com has it.

What a POST came to is told by its status alone: 2xx is delivered; 410 (gone) and 413 (too large) are final; everything
else raises with its status, and with how long the server asked to wait, and is tried again. Redirects are not
followed: a signed message goes where it was sent, or nowhere.

A webhook's URL is often somebody else's choice, so it must not reach into the network that it is sent from. A name is
resolved at each try, all its addresses must be of the public internet (`addresses.py`), and the connection goes to one
of those that were checked, so a name that changes its mind in between (DNS rebinding) gains nothing; `Host`, TLS's
server name and the certificate's check stay with the name. An address in the URL itself is refused when the sink is
made. A name with a private address fails its try like a server that is down: its record may be mended, or
`allow_private=True` set, and nothing that waited is lost. Proxies of the environment are not used, since they connect
where nobody here has looked.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from perdure.core.durations import Duration
from perdure.core.retry import Retry
from perdure.errors import PerdureError, Undeliverable, UsageError
from perdure.integrations.addresses import addresses, is_address, is_public
from perdure.integrations.contents import body, visible
from perdure.integrations.drivers import driver
from perdure.integrations.inputs import checked_url, header_lines, one_try, tries
from perdure.integrations.signatures import ID, SIGNATURE, TIMESTAMP, Secrets, secret_bytes, sign
from perdure.runtime.sinks import DELIVERY_RETRY, Outgoing, Sink

if TYPE_CHECKING:
    import httpx

FINAL_STATUSES: Final = {410: "is gone", 413: "finds it too large"}

ANSWER_BYTES: Final = 300
"""How much of an answer is read, for the error's text."""

ANSWER_S: Final = 1.0
"""How long an answer's body is waited for: its status has said everything."""

ADDRESSES_MAX: Final = 3
"""Addresses of a name that are tried, one after the other, until one takes the connection."""

CONNECT_SHARE: Final = 1 / (ADDRESSES_MAX + 1)
"""How much of the time one of them may take for that."""

OWN_HEADERS: Final = frozenset(
    {ID, TIMESTAMP, SIGNATURE, "host", "content-type", "content-length", "transfer-encoding"}
)

PORTS: Final = {"http": 80, "https": 443}

PORT_MAX: Final = 65_535


class WebhookFailed(PerdureError):
    """A webhook's server answered with something else than success (`status`, `retry_after` as it sent it, or None)."""


class AddressRefused(PerdureError):
    """A webhook's name leads into a private network (`host`, `address`); `allow_private=True` lets it."""


class Webhook(Sink):
    """Posts each delivery's payload as JSON to one URL.

    `secret` signs it (`whsec_...`; of several, which `verify` accepts each, all sign); without one, only the headers
    `webhook-id`, the delivery's key, and `webhook-timestamp` are sent. `headers` are sent besides. `timeout` is for one
    try from its beginning to its end. `tls` is for a certificate authority of your own, or a client certificate.

    Needs httpx: `pip install 'perdure[webhook]'`.
    """

    def __init__(
        self,
        url: str,
        secret: Secrets | None = None,
        *,
        timeout: Duration = 15.0,
        retry: Retry | int = DELIVERY_RETRY,
        allow_private: bool = False,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._httpx = driver("httpx", extra="webhook", what="A webhook")
        self._url = self._checked(url, allow_private=allow_private)
        self._secrets = () if secret is None else secret_bytes(secret)
        self._allow_private = allow_private
        self._headers = header_lines(headers, own=OWN_HEADERS)
        self._tls = _context(tls)
        self._client: httpx.AsyncClient | None = None
        self.retry, self._limit_s = tries(retry), one_try(timeout)
        self.timeout_s = self._limit_s + ANSWER_S  # the status comes within the one, its text within the other

    async def deliver(self, item: Outgoing) -> None:
        """Post it. Raises `WebhookFailed`, `AddressRefused`, `TimeoutError`, and what httpx raises."""
        content = body(item)
        with self._patience():
            async with asyncio.timeout(self._limit_s):
                answer = await self._sent(self._request_headers(visible(item.key), content), content)
        try:
            # Of a success too: a connection whose answer was read to its end can be used again.
            text = await self._text(answer)
        finally:
            await answer.aclose()
        if not answer.is_success:
            raise self._failure(answer, text)

    async def close(self) -> None:
        """Let go of its connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _checked(self, url: str, *, allow_private: bool) -> httpx.URL:
        try:
            parsed: httpx.URL = self._httpx.URL(checked_url(url, tuple(PORTS), what="A webhook's URL"))
            parsed.raw_host.decode("ascii")
        except (self._httpx.InvalidURL, UnicodeError) as error:
            raise UsageError("A webhook's URL has a host or a port that none can have.") from error
        if not parsed.host or not 0 < (parsed.port or PORTS[parsed.scheme]) <= PORT_MAX:
            raise UsageError("A webhook's URL names a host, and a port of one; this one has none.")
        if not allow_private and is_address(parsed.host) and not is_public(parsed.host):
            raise UsageError(
                f"{parsed.host} is not of the public internet; allow_private=True lets a webhook go there."
            )
        return parsed

    def _request_headers(self, id: str, content: bytes) -> dict[str, str]:
        signed = sign(content, id=id, at_s=int(time.time()), secrets=self._secrets)
        if not self._secrets:
            del signed[SIGNATURE]
        fixed = {"host": self._url.netloc.decode("ascii"), "content-type": "application/json"}
        return {"user-agent": "perdure", "accept-encoding": "identity", **self._headers, **fixed, **signed}

    async def _sent(self, headers: dict[str, str], content: bytes) -> httpx.Response:
        """The answer of the first address that takes the connection; its body is still to be read."""
        client = self._opened()
        targets = await self._targets()
        for number, address in enumerate(targets, start=1):
            request = client.build_request(
                "POST",
                self._url.copy_with(host=address),
                headers=headers,
                content=content,
                extensions={"sni_hostname": self._url.raw_host.decode("ascii")},
            )
            try:
                return await client.send(request, stream=True)
            except (self._httpx.ConnectError, self._httpx.ConnectTimeout):
                # Nothing was sent: the next address may be up.
                if number == len(targets):
                    raise
            finally:
                client.cookies.clear()  # one delivery says nothing to the next
        raise AssertionError("a name has at least one address")

    @contextlib.contextmanager
    def _patience(self) -> Iterator[None]:
        """Time-outs, httpx's and our own, say who has taken too long for what. The host and no more of the URL."""
        host = self._url.host
        try:
            yield
        except self._httpx.ConnectTimeout as error:
            raise TimeoutError(f"{host} took no connection within {self._limit_s * CONNECT_SHARE:g} s") from error
        except (TimeoutError, self._httpx.TimeoutException) as error:
            raise TimeoutError(f"{host} did not answer within {self._limit_s:g} s") from error

    async def _targets(self) -> list[str]:
        """Where to connect to."""
        host = self._url.host
        if is_address(host):  # checked when the sink was made
            return [host]
        found = await addresses(self._url.raw_host.decode("ascii"), self._url.port or PORTS[self._url.scheme])
        refused = [] if self._allow_private else [address for address in found if not is_public(address)]
        if refused:
            raise AddressRefused(
                f"{host} has the address {refused[0]}, not one of the public internet; allow_private=True lets it.",
                host=host,
                address=refused[0],
            )
        return found[:ADDRESSES_MAX]

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            transport = self._httpx.AsyncHTTPTransport(verify=self._tls if self._tls is not None else True)
            times = self._httpx.Timeout(self._limit_s, connect=self._limit_s * CONNECT_SHARE)
            self._client = self._httpx.AsyncClient(
                transport=transport, timeout=times, follow_redirects=False, trust_env=False
            )
        assert self._client is not None
        return self._client

    async def _text(self, answer: httpx.Response) -> str:
        """The beginning of its body. Whatever becomes of the rest, the status stands."""
        read = bytearray()
        with contextlib.suppress(self._httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                async for piece in answer.aiter_raw():
                    read += piece[:ANSWER_BYTES]
                    if len(read) >= ANSWER_BYTES:
                        break
        return read[:ANSWER_BYTES].decode(errors="replace").strip()

    def _failure(self, answer: httpx.Response, text: str) -> PerdureError:
        # The host and no more of the URL: its path is often a secret.
        host, status = self._url.host, answer.status_code
        said = f": {text}" if text else "."
        if status in FINAL_STATUSES:
            return Undeliverable(f"{host} answered {status}, it {FINAL_STATUSES[status]}{said}", status=status)
        if answer.is_redirect:
            said = "; redirects are not followed."
        return WebhookFailed(
            f"{host} answered {status}{said}", status=status, retry_after=answer.headers.get("retry-after")
        )


def _context(tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise UsageError(f"tls is an ssl.SSLContext, not a {type(tls).__name__}.")
    return tls
