"""Calls the management API of servers on other machines: over TCP, with their token."""

from __future__ import annotations

import http.client
import os
import socket
from urllib.parse import urlsplit

from corosrv.base.errors import ManagementError, SettingsError
from corosrv.web.management.client import TIMEOUT, ManagementClient
from corosrv.web.management.listener import read_token

TOKEN_VARIABLE = "COROSRV_MGMT_TOKEN_FILE"


class RemoteClient(ManagementClient):
    """Calls the management API at a URL such as http://front:8079. Waits."""

    def __init__(self, url: str, token: str = "", timeout: float = TIMEOUT) -> None:
        """`timeout`: seconds that each step of a call may take. Raises ManagementError for what is no such URL."""
        super().__init__(url)
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise ManagementError(f"{url[:200]!r} is no URL") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ManagementError(f"{url[:200]!r} is no URL of a management port, as http://front:8079 is one")
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname
        self._token = token
        self._timeout = timeout

    def connect(self) -> http.client.HTTPConnection:
        """Makes a connection, which is opened by the first request."""
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        return kind(self._host, self._port, timeout=self._timeout)

    def headers(self) -> dict[str, str]:
        """Returns what every request carries: the token, where there is one."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def each_address(self) -> list[RemoteClient]:
        """Returns a client for each address that the name leads to now. Waits for the resolver. Raises OSError.

        Over TLS it is one client, of the name that the certificate has.
        """
        if self._is_secure:
            return [self]
        port = self._port or http.client.HTTP_PORT
        found = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        addresses = dict.fromkeys(str(address[0]) for *_, address in found)
        return [RemoteClient(_url_of(address, port), self._token, self._timeout) for address in addresses]


def token_of(path: str) -> str:
    """Returns the token in this file, or in the one that COROSRV_MGMT_TOKEN_FILE names; empty where there is none.

    Raises ManagementError for a file that cannot be read.
    """
    path = path or os.environ.get(TOKEN_VARIABLE, "")
    try:
        return read_token(path) if path else ""
    except SettingsError as error:
        raise ManagementError(str(error)) from None


def _url_of(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
