"""Which addresses are of the public internet: where a URL that somebody else chose may lead.

The tables are written out, from IANA's registries of special-purpose addresses (RFC 6890), so that every version of
Python refuses the same ones. Of IPv6 only what is given out as global unicast passes, and an IPv4 address inside an
IPv6 one (mapped, or translated by NAT64) counts as itself.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

IPV4_REFUSED: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared, behind a provider's NAT
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # public by its number, and inside Azure the platform's own
        "169.254.0.0/16",  # link-local; clouds keep a machine's credentials there
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays, withdrawn
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and the broadcast
    )
)

IPV6_GLOBAL: Final = ip_network("2000::/3")

IPV6_REFUSED: Final = tuple(
    ip_network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address of anybody's choice
        "3fff::/20",  # documentation
    )
)

NAT64: Final = IPv6Network("64:ff9b::/96")


def is_public(text: str) -> bool:
    """Whether an IP address is one of the public internet."""
    address = ip_address(text)
    if isinstance(address, IPv6Address):
        address = _inner(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in IPV4_REFUSED)
    return address in IPV6_GLOBAL and not any(address in network for network in IPV6_REFUSED)


def is_address(host: str) -> bool:
    """Whether a URL's host is an address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def addresses(host: str, port: int) -> list[str]:
    """The addresses that a name has now, in the order to try them in, each once. Raises `socket.gaierror`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[4][0]) for where in found))


def _inner(address: IPv6Address) -> IPv4Address | IPv6Address:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address
