"""Hands the connection of a request to the management API over to whoever goes on with it in another protocol."""

from __future__ import annotations

import _socket
import os
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import Response, request
from gevent.pywsgi import WSGIHandler

from corosrv.base.errors import Forbidden, Refused

CONNECTION = "corosrv.connection"  # in the WSGI environment: the socket of the request
_SUCCESSOR = "corosrv.successor"  # what to call once the answer was sent, with the connection let go of
_CREDENTIALS = struct.Struct("3i")  # the kernel's struct ucred: process, user and group


class UpgradableHandler(WSGIHandler):  # type: ignore[misc]
    """Serves a connection until a view has upgraded it, and from then on neither reads nor closes it."""

    is_upgraded = False

    def get_environ(self) -> dict[str, object]:
        """Returns the WSGI environment with the connection in it."""
        return {**super().get_environ(), CONNECTION: self.socket}

    def handle_one_response(self) -> None:
        """Answers, and releases a connection that was upgraded, whether or not the answer could be sent."""
        try:
            super().handle_one_response()
        finally:
            if (succeed := self.environ.get(_SUCCESSOR)) is not None:
                self.is_upgraded = True
                self.rfile.close()
                if not isinstance(self.socket, ssl.SSLSocket):  # which has no duplicate
                    self.socket.close()
                self.socket: Any = None  # the base class leaves it alone then
                succeed()


@dataclass(frozen=True)
class LocalPeer:
    """The process that opened a Unix socket, as the kernel reports it."""

    pid: int
    uid: int


def is_remote() -> bool:
    """Returns whether the current request came over TCP."""
    family: int = request.environ[CONNECTION].family
    return family != socket.AF_UNIX


def local_peer() -> LocalPeer:
    """Returns who is at the other end of the current request. Raises Forbidden for a connection over TCP."""
    connection = request.environ[CONNECTION]
    if is_remote():
        raise Forbidden("this is for programs at the management socket, and not over TCP", "not_local")
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )  # fmt: skip
    return LocalPeer(pid, uid)


def check_own() -> None:
    """Raises Forbidden unless the program at the other end belongs to this server's user, or to root."""
    peer = local_peer()
    if peer.uid not in (os.geteuid(), 0):
        raise Forbidden(f"the user {peer.uid} may not do this: the server runs as {os.geteuid()}", "wrong_user")


def check_wanted(protocol: str) -> None:
    """Raises Refused unless the current request asks for this protocol, and has no body."""
    wanted = request.headers.get("Upgrade", "")
    if not wanted or request.headers.get("Connection", "").lower() != "upgrade":
        raise Refused(f"the request must have the headers Connection: Upgrade and Upgrade: {protocol}", "Upgrade")
    if wanted != protocol:
        raise Refused(
            f"this server speaks {protocol} here, and not {wanted[:120]!r}: use one version of corosrv on both sides",
            "Upgrade",
        )
    if request.content_length or "Transfer-Encoding" in request.headers:
        raise Refused("the request must have no body", "body")


def duplicate() -> Any:
    """Returns a socket of one's own for the connection of the current request; over TLS, the connection itself."""
    connection = request.environ[CONNECTION]
    if isinstance(connection, ssl.SSLSocket):
        return connection
    return _socket.socket(fileno=os.dup(connection.fileno()))


def switch(protocol: str, succeed: Callable[[], None], worker_id: str) -> Response:
    """Answers that the protocol is switched; `succeed` is called when the answer was sent, or could not be."""
    request.environ[_SUCCESSOR] = succeed
    return Response(
        status=101, headers={"Connection": "Upgrade", "Upgrade": protocol, "X-Corosrv-Worker": worker_id}
    )  # fmt: skip
