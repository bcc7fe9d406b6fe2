"""Asks a server to let a worker join, and returns the connection that becomes the worker's control channel."""

from __future__ import annotations

import http.client
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from corosrv.base.errors import ManagementError, Unavailable
from corosrv.web.management.client import ManagementClient, UnixConnection, decode_answer, running_servers
from corosrv.web.management.join_routes import JOIN, PROTOCOL
from corosrv.workers.manager.joined import Joining


@dataclass(frozen=True)
class JoinedConnection:
    """Holds the connection of a worker that has joined, its name there, and a client of that server."""

    connection: socket.socket
    worker_id: str
    client: ManagementClient


class _UnbufferedResponse(http.client.HTTPResponse):
    """Reads no byte more than the head: what follows is for the worker."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = sock.makefile("rb", buffering=0)  # type: ignore[assignment]


def join(path: str, joining: Joining) -> JoinedConnection:
    """Joins the server at a socket, or the one that runs in a folder. Waits.

    Raises OSError where none answers, Unavailable where it takes no worker now, ManagementError where it refuses this
    one, and SettingsError for a folder that others can use.
    """
    client = _server_in(path) if Path(path).is_dir() else ManagementClient(path)
    asked = {
        "app": joining.app_ref,
        "app_dir": joining.app_dir,
        "factory": str(int(joining.is_factory)),
        "pool": joining.pool,
    }
    connection = UnixConnection(client.path)
    connection.response_class = _UnbufferedResponse
    try:
        connection.request("POST", f"{JOIN}?{urlencode(asked)}", headers={"Connection": "Upgrade", "Upgrade": PROTOCOL})
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.SWITCHING_PROTOCOLS:
            _raise(answer)
        connection.sock.settimeout(None)
        return JoinedConnection(connection.sock.dup(), answer.headers["X-Corosrv-Worker"], client)
    except http.client.HTTPException as error:
        raise ManagementError(f"the server at {client.path} gave no answer: {error!r}") from None
    finally:
        connection.close()


def _server_in(folder: str) -> ManagementClient:
    servers = running_servers(folder)
    if not servers:
        raise FileNotFoundError(f"no server has a management socket in {folder}")
    if len(servers) > 1:
        paths = ", ".join(client.path for client, _ in servers)
        raise ManagementError(f"{len(servers)} servers run in {folder}: name the socket of one of them: {paths}")
    return servers[0][0]


def _raise(answer: http.client.HTTPResponse) -> NoReturn:
    """Raises what an answer says that is no upgrade."""
    try:
        decode_answer(answer.status, answer.read())
    except ManagementError as error:
        if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable(str(error)) from None
        raise
    raise ManagementError(f"the server answered with status {answer.status}, and is none that workers can join")
