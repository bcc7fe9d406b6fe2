"""HTTP requests that corosrv makes itself: which URLs, addresses and redirects it accepts. Nothing here sends them.

A URL may be a client's choice, and nobody is to reach through this server what the client could not reach alone. So
names are looked up first, and the request goes to the address that was checked: a name whose address changes meanwhile
(DNS rebinding) leads nowhere else. Addresses are sorted by a list of its own, since Python's differs between its
versions (CVE-2024-4032). `Redirects` follows one request to where it ends. `WebhookSigner` signs what is posted.
`keep_alive` is for connections that last, `retry_after` for servers that are busy.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any
from urllib.parse import urljoin, urlsplit

from corosrv.base.errors import DestinationRefused, RedirectRefused

_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str | None, int | None]  # scheme, host, port


def is_http_url(text: str) -> bool:
    """Returns whether it is an absolute http or https URL with a host, and cannot break out of a request line."""
    if not text.isprintable() or " " in text:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme.lower() in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, an address with half a bracket
        return False


def origin(url: str) -> Origin:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or _PORTS.get(scheme)


def is_same_site(url: str, other: str) -> bool:
    """Returns whether `other` has the origin of `url`, or is the same host over https in place of http."""
    own, target = origin(url), origin(other)
    upgraded = ("https", own[1], _PORTS["https"]) if own[::2] == ("http", _PORTS["http"]) else own
    return target in (own, upgraded)


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


class Destinations:
    """The destinations that an operator allows: all but link-local and reserved ones, unless `names` narrow that."""

    def __init__(self, names: Iterable[str] = (), *, private_by_name: bool = True) -> None:
        """`names`: host names, `*.example.com` for all below, addresses and networks; none allow all.

        Without `private_by_name`, a host must be listed before it is looked up, and an address that is not public must
        itself be listed, or be in a network that is.
        Raises ValueError for one that is none of these.
        """
        self._private_by_name = private_by_name
        self._names: set[str] = set()
        self._suffixes: list[str] = []
        self._networks: list[Network] = []
        for name in names:
            self._add(name.strip().lower())

    def _add(self, name: str) -> None:
        if name.startswith("*."):
            self._suffixes.append(name[1:])
        elif (network := _network(name)) is not None:
            self._networks.append(network)
        elif name and not set(name) & set("/:*@ "):
            self._names.add(name)
        else:
            raise ValueError(f"{name!r} is neither a host name nor an address nor a network")

    def look_up(self, host: str, port: int, *, to_loopback: bool) -> list[str]:
        """Returns the allowed addresses of a host, the best first. Waits.

        Raises DestinationRefused where it has none, and OSError where it cannot be found.
        """
        if not self._private_by_name and not self._is_named(host):
            raise DestinationRefused(_not_allowed(host))
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in entries))
        faults = {address: self.fault(host, ipaddress.ip_address(address), to_loopback) for address in addresses}
        permitted = [address for address, fault in faults.items() if not fault]
        if not permitted:
            raise DestinationRefused(next(iter(faults.values())))
        return permitted

    def fault_of_url(self, url: str, *, to_loopback: bool) -> str:
        """Returns why a URL whose host is an address is refused; empty for names, which are looked up later."""
        _, host, _ = origin(url)
        address = _address(host or "")
        return "" if address is None else self.fault(str(host), address, to_loopback)

    def fault(self, host: str, address: Address, to_loopback: bool) -> str:
        """Returns why requests to a host at this address are refused; empty if they are not."""
        kind, address = kind_of(address), unpacked(address)
        if kind is AddressKind.LINK_LOCAL:
            return f"{host} is a link-local address, where no request goes"
        if kind is AddressKind.RESERVED:
            return f"{host} is not a public address but a reserved one, where no request goes"
        if kind is AddressKind.THIS_MACHINE and not to_loopback:
            return f"{host} is this machine, which only clients that reach the server by a loopback address may name"
        if not self._private_by_name and kind is not AddressKind.PUBLIC and not self._has_address(address):
            return f"{host} is not a public address, where requests go only if the operator lists the address"
        if not self._is_listed(host, address):
            return _not_allowed(host)
        return ""

    def _is_listed(self, host: str, address: Address) -> bool:
        if not (self._names or self._suffixes or self._networks):
            return True
        return self._is_host(host) or self._has_address(address)

    def _is_named(self, host: str) -> bool:
        """Tells whether a host is listed as it stands in the URL, whatever its addresses are."""
        address = _address(host)
        return self._is_host(host) if address is None else self._has_address(unpacked(address))

    def _is_host(self, host: str) -> bool:
        host = host.lower().removesuffix(".")
        return host in self._names or host.endswith(tuple(self._suffixes))

    def _has_address(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _not_allowed(host: str) -> str:
    return f"{host[:120]} is none of the hosts that the operator allows"


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(name: str) -> Network | None:
    try:
        return ipaddress.ip_network(name, strict=False)
    except ValueError:
        return None


MAX_REDIRECTS = 5
ALL = frozenset({301, 302, 303, 307, 308})
KEEPING_METHOD = frozenset({307, 308})  # and the body


class Redirects:
    """The way of one request: to its URL, and on to wherever answers send it.

    `while redirects.follow(answer.status, answer.headers.get("Location"))`: ask again, at `redirects.url`.
    """

    def __init__(self, url: str, statuses: Collection[int], *, leaves_site: bool = True) -> None:
        """Redirects of other `statuses` are final answers. Without `leaves_site`, it never goes to another origin."""
        self.url = url
        self._first = url
        self._statuses = statuses
        self._leaves_site = leaves_site
        self._n_followed = 0

    def follow(self, status: int | None, location: str | None) -> bool:
        """Goes on to `location`; returns False for a final answer. Raises RedirectRefused."""
        if status not in self._statuses or location is None:
            return False
        target = urljoin(self.url, location)
        if self._n_followed == MAX_REDIRECTS:
            raise RedirectRefused(f"more than {MAX_REDIRECTS} redirects")
        if not is_http_url(target):
            raise RedirectRefused("it redirects to something else than http or https")
        if not self._leaves_site and not is_same_site(self._first, target):
            raise RedirectRefused("it redirects to another host or port, which is not followed")
        self._n_followed += 1
        self.url = target
        return True


_SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)


class WebhookSigner:
    """Signs webhooks with each of some secrets, as Standard Webhooks has it; the first one signs first.

    Receivers accept any signature that they know, so that secrets can be replaced without a gap.
    """

    def __init__(self, secrets: str) -> None:
        """`secrets`: one or several, separated by spaces or commas. Raises ValueError, which shows none of them."""
        self._keys = tuple(map(_signing_key, filter(None, re.split(r"[\s,]+", secrets))))

    def headers(self, id: str, time: int, body: Sequence[bytes]) -> dict[str, str]:
        """Makes the headers of a body, which is in pieces; none where there is no secret.

        `id` is the message's own, at each of its tries. A MiB takes about 1 ms, without the GIL.
        """
        if not self._keys:
            return {}
        signatures = self._sign(id, time, body)
        return {"webhook-id": id, "webhook-timestamp": str(time), "webhook-signature": signatures}

    def _sign(self, id: str, time: int, body: Sequence[bytes]) -> str:
        signatures = []
        for key in self._keys:
            mac = hmac.new(key, f"{id}.{time}.".encode(), hashlib.sha256)
            for piece in body:
                mac.update(piece)
            signatures.append("v1," + base64.b64encode(mac.digest()).decode())
        return " ".join(signatures)


def _signing_key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_SECRET_PREFIX) or len(key) not in _SECRET_BYTES:
        raise ValueError("no secret of webhooks")
    return key


# A machine that vanishes ends no connection by itself. The system asks an idle one after 10 s whether it is there, and
# ends it after 30 s without an answer, or with bytes that it has not taken.
_KEEP_ALIVE = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)


def keep_alive(sock: Any) -> None:
    """Sets a TCP connection up to fail within half a minute after the machine at its other end has gone.

    `sock`: a socket of any library. Raises OSError for a connection that has ended.
    """
    for level, option, value in _KEEP_ALIVE:
        sock.setsockopt(level, option, value)


MAX_RETRY_AFTER = 300.0  # seconds


def retry_after(text: str | None, now: float) -> float:
    """Reads a Retry-After field, which holds seconds or a date. Returns seconds, 300 at most. `now`: Unix time."""
    if not text:
        return 0.0
    from email.utils import parsedate_to_datetime  # which worker processes do without

    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
