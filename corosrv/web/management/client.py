"""Calls the management API: of the server that runs here, and of servers on other machines.

Each server of a user has its socket in the run directory, a folder that nobody else can use. Others are called over
TCP, with their token. `Membership` keeps a server among the upstreams of fronts for as long as it is told to.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from corosrv.base.errors import ManagementError, SettingsError
from corosrv.base.outgoing import keep_alive
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
            text = read_answer(answer)
        except http.client.HTTPException as error:
            raise ManagementError(f"the server at {self.path} gave no answer: {error!r}") from None
        finally:
            connection.close()
        return decode_answer(answer.status, text)


_LONGEST_ANSWER = 16 << 20  # bytes
_PIECE = 65_536


def read_answer(answer: http.client.HTTPResponse) -> bytes:
    """Reads the body of an answer. Waits; raises ManagementError where it has no end, or none soon."""
    text = bytearray()
    while piece := answer.read(_PIECE):
        text += piece
        if len(text) > _LONGEST_ANSWER:
            raise ManagementError(f"the answer, of status {answer.status}, is larger than {_LONGEST_ANSWER} bytes")
    return bytes(text)


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


TOKEN_VARIABLE = "COROSRV_MGMT_TOKEN_FILE"


class RemoteConnection(http.client.HTTPConnection):
    """Connects over TCP, by TLS where there is a context, and notices within half a minute that the machine is gone."""

    def __init__(self, host: str, port: int, timeout: float, context: ssl.SSLContext | None, address: Any) -> None:
        """`address`: of one of the host's machines, as connected sockets have it; None: any."""
        super().__init__(host, port, timeout=timeout)
        self._context = context
        self._address = address

    def connect(self) -> None:
        to = self._address or (self.host, self.port)
        sock = socket.create_connection(to[:2], self.timeout)
        try:
            keep_alive(sock)
            self.sock = self._context.wrap_socket(sock, server_hostname=self.host) if self._context else sock
        except BaseException:
            sock.close()
            raise


def tls_context(ca_file: str) -> ssl.SSLContext:
    """Returns what verifies servers by the system's authorities, or those in a file. Raises ManagementError."""
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # also those of TLS
        raise ManagementError(f"{ca_file} holds no certificates in PEM: {error}") from None


class RemoteClient(ManagementClient):
    """Calls the management API at a URL such as http://front:8079. Waits."""

    def __init__(self, url: str, token: str = "", timeout: float = TIMEOUT, ca_file: str = "") -> None:
        """`timeout`: seconds that each step of a call may take. `ca_file`: authorities in place of the system's.

        Raises ManagementError for what is no such URL, and for a file without certificates.
        """
        super().__init__(url)
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            raise ManagementError(f"{url[:200]!r} is no URL") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ManagementError(f"{url[:200]!r} is no URL of a management port, as http://front:8079 is one")
        self._is_secure = parts.scheme == "https"
        self._context = tls_context(ca_file) if self._is_secure else None
        self.address: Any = None  # of the one machine that is meant, where the name has several; None: any
        self._host = parts.hostname
        self._token = token
        self._timeout = timeout

    def connect(self) -> http.client.HTTPConnection:
        """Makes a connection, which is opened by the first request."""
        port = self._port or (http.client.HTTPS_PORT if self._is_secure else http.client.HTTP_PORT)
        return RemoteConnection(self._host, port, self._timeout, self._context, self.address)

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


def read_token(path: str) -> str:
    """Returns the token in a file. Raises SettingsError if there is none."""
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"COROSRV_MGMT_TOKEN_FILE: {path} cannot be read: {error}") from None
    if not token:
        raise SettingsError(f"COROSRV_MGMT_TOKEN_FILE: {path} is empty")
    return token


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


class Membership:
    """Adds a server to fronts again and again, so that one which was started anew knows it. One thread's."""

    def __init__(
        self, fronts: Iterable[RemoteClient], body: Mapping[str, Any], say: Callable[[str], None] = print
    ) -> None:
        """`body`: of POST /workers. `say`: is told what has changed, and nothing twice in a row."""
        self._fronts = tuple(fronts)
        self._body = dict(body)
        self._say = say
        self._said: dict[str, str] = {}  # the last words about each front of the last round

    def renew(self) -> None:
        """Adds the server to each front that lacks it. Waits for each; failures are reported, not raised."""
        self._tell_each(self._add)

    def leave(self) -> None:
        """Removes the server everywhere; what it runs for a front may end. Waits and tells as renew() does."""
        self._tell_each(self._remove)

    def _tell_each(self, call: Callable[[ManagementClient], str]) -> None:
        words: dict[str, str] = {}
        for front in self._fronts:
            try:
                clients = front.each_address()
            except OSError as error:
                words[front.path] = f"the name in it leads nowhere: {error}"
                continue
            for client in clients:
                words[client.path] = _outcome(call, client)
        for place, text in words.items():
            if self._said.get(place) != text:
                self._say(f"{place}: {text}")
        self._said = words

    def _add(self, client: ManagementClient) -> str:
        answer = client.call("POST", "/workers", self._body)
        return f"{answer['url']} is an upstream, {answer['id']}"

    def _remove(self, client: ManagementClient) -> str:
        answer = client.call("DELETE", f"/workers/{quote(self._body['url'], safe='')}?mode=drain")
        return f"{answer['url']} leaves"


def _outcome(call: Callable[[ManagementClient], str], client: ManagementClient) -> str:
    try:
        return call(client)
    except (ManagementError, OSError) as error:
        return f"no success: {error}"
