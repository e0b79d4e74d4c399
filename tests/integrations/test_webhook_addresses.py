"""Where a webhook may go: no name, however it resolves, leads it into the network it is sent from."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from perdure.core.transience import is_transient
from perdure.errors import UsageError
from perdure.integrations import AddressRefused, Webhook, addresses, webhook
from tests.integrations.items import item
from tests.integrations.receiver import receiver

NAME = "hooks.example"
OUTSIDE = "127.0.0.1"
"""In these tests, of the public internet."""
INSIDE = "127.0.0.2"
DOWN = "127.0.0.3"

REFUSED = (
    "127.0.0.1", "10.1.2.3", "172.31.255.255", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "168.63.129.16", "::", "::1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1",
    "ff02::1", "2001:db8::1", "2002:7f00:1::", "2001::1", "::7f00:1",
)  # fmt: skip

PUBLIC = ("1.1.1.1", "172.32.0.1", "192.0.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808")


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """One loopback address counts as public."""
    monkeypatch.setattr(webhook, "is_public", lambda text: text == OUTSIDE or addresses.is_public(text))


class Resolver:
    """Answers for one name, each time with the next of its answers, and then with its last one."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    def __call__(self, host: Any, port: Any, *arguments: Any, **more: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        if name in (OUTSIDE, INSIDE, DOWN):
            found = [name]
        else:
            assert name == NAME
            found = self.answers[min(self.asked, len(self.answers) - 1)]
            self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port or 0))) for address in found]


@pytest.mark.parametrize("address", REFUSED)
def test_an_address_of_no_public_network_is_refused(address: str) -> None:
    assert not addresses.is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_not_refused(address: str) -> None:
    assert addresses.is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]"])
def test_a_private_address_in_the_url_is_refused_when_the_sink_is_made(host: str) -> None:
    with pytest.raises(UsageError, match="allow_private"):
        Webhook(f"http://{host}/")


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost"])
def test_a_private_address_in_disguise_is_refused_when_it_is_used(host: str) -> None:
    async def main() -> None:
        async with receiver() as there:
            with pytest.raises((AddressRefused, UsageError)):
                await Webhook(f"http://{host}:{there.port}/").deliver(item())
        assert there.connections == 0

    asyncio.run(main())


def test_a_name_with_one_private_address_is_refused(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Resolver([OUTSIDE, INSIDE]))

    async def main() -> None:
        async with receiver() as there:
            with pytest.raises(AddressRefused, match=INSIDE) as caught:
                await Webhook(f"http://{NAME}:{there.port}/").deliver(item())
        assert there.connections == 0
        assert (caught.value.host, caught.value.address) == (NAME, INSIDE)

    asyncio.run(main())


def test_a_name_that_changes_its_mind_gains_nothing(outside: None, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = Resolver([OUTSIDE], [INSIDE])
    monkeypatch.setattr(socket, "getaddrinfo", resolver)

    async def main() -> None:
        async with receiver(host=OUTSIDE) as there, receiver(host=INSIDE, port=there.port) as inner:
            sink = Webhook(f"http://{NAME}:{there.port}/")
            await sink.deliver(item())
            assert resolver.asked == 1
            with pytest.raises(AddressRefused):
                await sink.deliver(item())
            await sink.close()
        assert [request.headers["host"] for request in there.requests] == [f"{NAME}:{there.port}"]
        assert inner.connections == 0

    asyncio.run(main())


def test_where_one_address_is_down_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Resolver([DOWN, OUTSIDE]))

    async def main() -> None:
        async with receiver() as there:
            sink = Webhook(f"http://{NAME}:{there.port}/", allow_private=True)
            await sink.deliver(item())
            await sink.close()
        assert len(there.requests) == 1

    asyncio.run(main())


def test_a_name_that_nobody_knows_is_an_error_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*arguments: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)

    async def main() -> None:
        with pytest.raises(socket.gaierror) as caught:
            await Webhook(f"http://{NAME}/").deliver(item())
        assert is_transient(caught.value)

    asyncio.run(main())


def test_tls_is_checked_by_the_name(outside: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Resolver([OUTSIDE]))

    async def main() -> None:
        async with receiver(tls=_server(tmp_path, NAME)) as there:
            sink = Webhook(f"https://{NAME}:{there.port}/", tls=_trusting(tmp_path))
            await sink.deliver(item())
            await sink.close()
            assert there.names == [NAME]
            assert there.requests[0].headers["host"] == f"{NAME}:{there.port}"

    asyncio.run(main())


def test_a_certificate_of_another_name_is_refused(
    outside: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", Resolver([OUTSIDE]))

    async def main() -> None:
        async with receiver(tls=_server(tmp_path, "other.example")) as there:
            sink = Webhook(f"https://{NAME}:{there.port}/", tls=_trusting(tmp_path))
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await sink.deliver(item())
            await sink.close()
        assert there.requests == []

    asyncio.run(main())


def _server(folder: Path, name: str) -> ssl.SSLContext:
    """A server's context with a certificate of its own for that name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def _trusting(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=folder / "certificate.pem")
