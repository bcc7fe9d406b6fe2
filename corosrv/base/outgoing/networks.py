"""Sorts addresses into kinds by a list of its own: Python's differs between its versions (CVE-2024-4032)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from enum import IntEnum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressKind(IntEnum):
    """Kinds of addresses, the most guarded last."""

    PUBLIC = 0
    PRIVATE = 1  # of an organisation, or for documents and tests: not reachable from everywhere
    THIS_MACHINE = 2
    LINK_LOCAL = 3  # of the machine's own link, where clouds serve credentials
    RESERVED = 4  # where no server of anybody stands, and the servers that clouds have for their machines


_BY_KIND = {
    AddressKind.PRIVATE: (
        "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "::/96", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fc00::/7",
    ),
    AddressKind.THIS_MACHINE: ("0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128"),
    AddressKind.LINK_LOCAL: (
        "169.254.0.0/16", "fe80::/10",
        "fd00:ec2::/32", "fd20:ce::254/128", "fd00:42::42/128",  # AWS, Google, Scaleway
    ),
    AddressKind.RESERVED: (
        "192.0.0.0/24", "224.0.0.0/4", "240.0.0.0/4", "64:ff9b:1::/48", "fec0::/10", "ff00::/8",
        "100.100.100.200/32", "168.63.129.16/32",  # Alibaba, Azure
    ),
}  # fmt: skip
_NETWORKS: tuple[tuple[Network, AddressKind], ...] = tuple(
    (ipaddress.ip_network(text), kind) for kind, texts in _BY_KIND.items() for text in texts
)
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all public addresses of IPv6
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")


def kind_of(address: Address) -> AddressKind:
    """Returns the most guarded kind among an address and those that are packed into it."""
    return max(
        max((kind for network, kind in _NETWORKS if one in network), default=_default(one)) for one in _packed(address)
    )


def unpacked(address: Address) -> Address:
    """Returns the IPv4 address that an IPv6 one stands for; the address itself if it stands for none."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return _last_bits(address)
    return address


def _packed(address: Address) -> Iterator[Address]:
    """Yields the addresses that a packet to this one may end at."""
    inner = unpacked(address)
    yield inner
    if isinstance(inner, ipaddress.IPv6Address):
        if inner.teredo is not None:
            yield from inner.teredo
        if inner in _COMPATIBLE and int(inner) > 1:
            yield _last_bits(inner)


def _default(address: Address) -> AddressKind:
    return AddressKind.PUBLIC if address.version == 4 or address in _UNICAST else AddressKind.PRIVATE


def _last_bits(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
