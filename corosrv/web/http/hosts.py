"""Checks the name that a server is called by: the `Host` that a client sends."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

from flask import Request

from corosrv.base.errors import Forbidden

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::\d*)?")
# Names that only a machine's own resolver or its network's gives out.
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")


class Hosts:
    """The host names that requests to a loopback address may carry where no API key is asked for.

    A web page can have its own name resolve to the loopback address (DNS rebinding). The browser then takes this
    server for the page's own and lets the page read every answer. Its requests still carry that name as their Host.
    Local names and addresses always pass, because no foreign page can have them: names without a dot, those of
    localhost, `.local` and `.internal`, loopback and private addresses. A server that listens elsewhere without keys
    was opened to everybody, under whatever name the network gives it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """`names` are those that the operator allows: as they are, `*.example.com` for all below, `*` for any."""
        self._names = frozenset(name.lower() for name in names)
        self._suffixes = tuple(name[1:] for name in self._names if name.startswith("*."))
        self._is_strict = bool(self._names)
        self._is_allowed = lru_cache(maxsize=256)(self._look)  # most clients send the same few names

    def check(self, request: Request) -> None:
        """Raises Forbidden for a name that this server may not be called by. Requests without a Host pass.

        Where the operator named hosts they are checked on every address.
        """
        host = request.environ.get("HTTP_HOST")
        if "*" in self._names or not host or self._is_allowed(host):
            return
        if not self._is_strict and not came_by_loopback(request):
            return
        raise Forbidden(
            f"this server, which asks for no API key, may not be called as {host[:200]}: its operator can allow the "
            "name in COROSRV_ALLOWED_HOSTS",
            "host_not_allowed",
        )

    def _look(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = (parts["ipv6"] or parts["name"]).lower().removesuffix(".")
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return "." not in name or name.endswith(_LOCAL_SUFFIXES)
        return address.is_private or address.is_loopback


def came_by_loopback(request: Request) -> bool:
    """Returns whether the client connected to a loopback address, as far as the web server tells."""
    socket = request.environ.get("gunicorn.socket")
    try:
        address = socket.getsockname()[0] if socket else request.environ.get("SERVER_NAME", "")
        return ipaddress.ip_address(address).is_loopback
    except (OSError, ValueError, IndexError):
        return False
