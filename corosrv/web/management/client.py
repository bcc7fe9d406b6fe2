"""Finds the server that runs here, and calls its management API.

Each server of a user has its socket in the run directory, a folder that nobody else can use.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from corosrv.base.errors import ManagementError, SettingsError
from corosrv.base.run_dir import check_private, default_path, path_in

SUFFIX = ".sock"


def new_socket_path(folder: str) -> str:
    """Returns the path of a socket that is not there yet. Raises SettingsError if it would be too long."""
    return path_in(folder, secrets.token_hex(4) + SUFFIX)


def sockets(folder: str) -> list[str]:
    """Returns the sockets in a run directory, of servers that run or have been killed. None where it is not there.

    Raises SettingsError for a folder that somebody else could have filled.
    """
    try:
        check_private(folder)
        entries = sorted(Path(folder).iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SettingsError(f"the run directory {folder} cannot be read: {error.strerror}") from None
    return [str(entry) for entry in entries if entry.suffix == SUFFIX and entry.is_socket()]


TIMEOUT = 30.0  # seconds


class UnixConnection(http.client.HTTPConnection):
    """Connects to a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ManagementClient:
    """Calls the management API on one Unix socket. Waits."""

    def __init__(self, path: str) -> None:
        self.path = path

    def connect(self) -> http.client.HTTPConnection:
        """Makes a connection, which is opened by the first request."""
        return UnixConnection(self.path)

    def headers(self) -> dict[str, str]:
        """Returns what every request carries."""
        return {}

    def call(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the answer's body. Raises ManagementError for a failure, and OSError if no server is there."""
        connection = self.connect()
        try:
            content = None if body is None else json.dumps(body)
            kind = {"Content-Type": "application/json"} if content else {}
            connection.request(method, target, content, kind | self.headers())
            answer = connection.getresponse()
            text = answer.read()
        except http.client.HTTPException as error:
            raise ManagementError(f"the server at {self.path} gave no answer: {error!r}") from None
        finally:
            connection.close()
        return decode_answer(answer.status, text)


def decode_answer(status: int, text: bytes) -> dict[str, Any]:
    """Returns the body of an answer. Raises ManagementError, with its words, for one that is a failure."""
    try:
        value = json.loads(text)
    except ValueError:
        raise ManagementError(f"the server answered with status {status} and no JSON: {text[:200]!r}") from None
    if status >= 400 or not isinstance(value, dict):
        words = value.get("error") if isinstance(value, dict) else None
        raise ManagementError(words or f"the server answered with status {status}")
    return value


def path_of(*parts: str) -> str:
    """Makes the path of a request from its parts, whatever characters they have."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def find_server(run_dir: str = "", server: str = "") -> tuple[ManagementClient, dict[str, Any]]:
    """Returns a client of the server that runs, and what it says of itself.

    `server`: its process id, where several run. Raises ManagementError where none or several fit, which names them.
    """
    folder = run_dir or os.environ.get("COROSRV_RUN_DIR") or default_path()
    running = running_servers(folder)
    if server:
        running = [entry for entry in running if server == str(entry[1]["pid"])]
    if not running:
        named = f"no server with the process id {server} has" if server else "no server has"
        raise ManagementError(
            f"{named} a management socket in {folder}: is one running that serves an application or upstreams, "
            "as this user, and with the same COROSRV_RUN_DIR?"
        )
    if len(running) > 1:
        lines = [f"  --server {about['pid']}  ({about['state']}, {client.path})" for client, about in running]
        raise ManagementError("\n".join([f"{len(running)} servers run here: choose one", *lines]))
    return running[0]


def running_servers(folder: str) -> list[tuple[ManagementClient, dict[str, Any]]]:
    """Returns the servers that answer; sockets of servers that were killed are passed over. Waits.

    Raises SettingsError for a folder that somebody else could have filled, and ManagementError.
    """
    running = []
    for path in sockets(folder):
        client = ManagementClient(path)
        try:
            running.append((client, client.call("GET", "/v1/server")))
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except OSError as error:
            raise ManagementError(f"the server at {path} gave no answer: {error}") from None
    return running
