"""Limits the hosts and addresses of requests whose URL a client chose, so that nobody reaches through this server.

Names are looked up first and the request then goes to the address that was checked: a name whose address changes
meanwhile (DNS rebinding) leads nowhere else.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from corosrv.base.errors import DestinationRefused
from corosrv.base.outgoing.networks import Address, AddressKind, Network, kind_of, unpacked
from corosrv.base.outgoing.urls import origin


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
