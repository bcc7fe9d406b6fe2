"""Serves the management API: on a private Unix socket, and over TCP to those who have the token, if that was asked for.

Workers of other systems register over gRPC, by an address (the service WorkerManagement: RegisterModel,
UnregisterModel, Heartbeat). Such a registration is never allowed here, whatever it says, and is refused in words that
the client shows. So no header of a request is decoded, and HTTP/2 takes a page. Source: RFC 9113 (frames), RFC 7541
(literal header fields), and gRPC's "Trailers-Only" answers.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import gevent.ssl
from flask import Blueprint, Flask, request
from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import Input, WSGIServer

from corosrv.base.errors import SettingsError, Unauthorized
from corosrv.base.run_dir import default_path, open_run_dir
from corosrv.contracts.jobs import State
from corosrv.web.http.listener import Certificates
from corosrv.web.http.worker_watch import certificate_fault
from corosrv.web.management.client import new_socket_path, read_token
from corosrv.web.management.routes import make_app
from corosrv.web.management.upgrade import UpgradableHandler, check_own

log = logging.getLogger("corosrv.management")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # how every connection of a client begins
MAX_FRAME = 16_384  # bytes of a frame's content, as HTTP/2 has it where nothing else was agreed
WORDS = b"workers register by joining, not by an address: corosrv worker APP --join PATH"

_HEAD = struct.Struct(">BHBBL")  # the content's length in three bytes, kind, flags, stream
_HEADERS, _SETTINGS, _PING, _CONTINUATION = 0x1, 0x4, 0x6, 0x9
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_STATUS_200 = b"\x88"  # `:status: 200` in the static table
_PERMISSION_DENIED = b"7"


class GrpcRefusal:
    """Turns what a client has sent behind its PREFACE into what it is answered. Touches no socket."""

    def __init__(self) -> None:
        self._unread = b""
        self.is_over = False  # the client breaks the protocol, and hears no more

    def begin(self) -> bytes:
        """Returns what a server sends first."""
        return _frame(_SETTINGS, 0, 0)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes as they come, and returns the answer to the frames that are complete."""
        self._unread += data
        answers: list[bytes] = []
        while len(self._unread) >= _HEAD.size and not self.is_over:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._unread)
            end = _HEAD.size + (high << 16 | low)
            if end > _HEAD.size + MAX_FRAME:
                self.is_over = True
            elif len(self._unread) < end:
                break
            else:
                answers.append(_answer(kind, flags, stream & 0x7FFF_FFFF, self._unread[_HEAD.size : end]))
                self._unread = self._unread[end:]
        return b"".join(answers)


def _answer(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    if kind in (_SETTINGS, _PING) and not flags & _ACK:
        return _frame(kind, _ACK, 0, content if kind == _PING else b"")
    if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _REFUSAL)
    return b""


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(0, len(content), kind, flags, stream) + content


def _field(name: bytes, value: bytes) -> bytes:
    """Returns a header field as a literal, which no table keeps; both are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


_REFUSAL = _STATUS_200 + b"".join(
    (
        _field(b"content-type", b"application/grpc"),
        _field(b"grpc-status", _PERMISSION_DENIED),
        _field(b"grpc-message", WORDS),
    )
)


def refuse(read: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
    """Answers a client whose PREFACE was read until it leaves. Waits in `read`, which returns nothing at the end."""
    refusal = GrpcRefusal()
    send(refusal.begin())
    while not refusal.is_over and (data := read()):
        if answer := refusal.receive(data):
            send(answer)


class TokenGuard:
    """Admits requests that carry the token."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def check(self) -> None:
        """Raises Unauthorized for the current request."""
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._token):
            raise Unauthorized("managing this server needs the token of its COROSRV_MGMT_TOKEN_FILE: "
                               "Authorization: Bearer TOKEN")  # fmt: skip


CONNECTIONS = 32  # at once
LONGEST_CONNECTION = 60.0  # seconds
HEAD_TIME = 5.0  # seconds from the beginning of a connection, or the last answer, to the end of a request's head
UNREAD_TIME = 1.0  # seconds for the rest of a body once the request was answered
_BACKLOG = 32


@dataclass(frozen=True, kw_only=True)
class ManagementSettings:
    """Holds the settings of the management API."""

    run_dir: str = ""  # the folder of the socket; empty: the user's own
    port: int | None = None  # for TCP; 0: any free one; None: no TCP
    host: str = "127.0.0.1"
    token_file: str = ""  # whose content a request over TCP has to carry
    certfile: str = ""  # with which TCP speaks TLS
    keyfile: str = ""  # of the certificate; empty: the same file

    def __post_init__(self) -> None:
        if (self.certfile and self.port is None) or (self.keyfile and not self.certfile):
            raise SettingsError("COROSRV_MGMT_CERTFILE is for the port of COROSRV_MGMT_PORT, and COROSRV_MGMT_KEYFILE "
                                "for that certificate: set these, too")  # fmt: skip
        if self.port is not None and not self.token_file:
            raise SettingsError("COROSRV_MGMT_PORT opens the management of this server to every user of the machine, "
                                "and needs a token: write one into a file that only you may read, and set "
                                "COROSRV_MGMT_TOKEN_FILE to its path. The socket needs none")  # fmt: skip


def _tls_context(settings: ManagementSettings) -> Any:
    """Returns what speaks TLS with the certificate of the settings. Raises SettingsError."""
    if fault := certificate_fault(settings.certfile, settings.keyfile or None):
        raise SettingsError(f"COROSRV_MGMT_CERTFILE: {fault}")
    context = gevent.ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.certfile, settings.keyfile or None)
    return context


_FIRST_LINE, _REST = PREFACE.split(b"\r\n", 1)
_READ_SIZE = 16_384  # bytes


class _Handler(UpgradableHandler):
    wsgi_input: Any
    _head_timer: Any = None

    def handle(self) -> None:
        """Serves a connection, for a time that is enough for every call of this API; not once it was upgraded."""
        with gevent.Timeout(LONGEST_CONNECTION, False):
            super().handle()

    def handle_one_request(self) -> Any:
        """Answers a request, whose head must come in time: the connection ends otherwise."""
        with gevent.Timeout(HEAD_TIME, False) as self._head_timer:
            return super().handle_one_request()

    def get_environ(self) -> dict[str, object]:
        """Returns the WSGI environment of a request, whose head is complete."""
        self._head_timer.close()
        return super().get_environ()

    def run_application(self) -> None:
        """Answers a request. Waits only briefly for a body that was not read, as that of a request without the token.

        The base class would wait for all of it.
        """
        super().run_application()
        with gevent.Timeout(UNREAD_TIME, False):
            self.wsgi_input._discard()
            return
        self.wsgi_input = Input(self.rfile, 0)
        self.close_connection = True

    def read_requestline(self) -> str:
        """Returns the first line of a request; nothing, which ends the connection, once a gRPC client was refused."""
        line: str = super().read_requestline()
        if line.rstrip("\r\n") != _FIRST_LINE.decode():
            return line
        if self.rfile.read(len(_REST)) == _REST:
            refuse(lambda: self.rfile.read1(_READ_SIZE), self.socket.sendall)
        return ""


class _ManagementServer(WSGIServer):  # type: ignore[misc]
    certificates: Certificates | None = None  # where it speaks TLS

    def wrap_socket_and_handle(self, client_socket: Any, address: Any) -> None:
        """Serves a connection over TLS, which must be agreed upon in time; leaves it open where it was upgraded."""
        if self.certificates is not None:
            self.certificates.look()
        try:
            with gevent.Timeout(HEAD_TIME, TimeoutError()):
                secure = self.wrap_socket(client_socket, **self.ssl_args)
        except OSError as error:  # also those of TLS
            log.info("a client speaks no TLS that this server takes: %s", error)
            return
        handler = self.handler_class(secure, address, self)
        try:
            handler.handle()
        finally:
            if not handler.is_upgraded:
                secure.close()


class ManagementListener:
    """Owns the sockets of the management API. Belongs to the hub's thread of the process that made it."""

    def __init__(
        self, settings: ManagementSettings, find_state: Callable[[], State], apis: Sequence[Blueprint]
    ) -> None:
        """`apis`: what can be managed. `find_state`: returns the state of that."""
        self._settings = settings
        self._find_state = find_state
        self._apis = tuple(apis)
        self._servers: list[Any] = []
        self._pid = os.getpid()
        self.path = ""  # of the Unix socket, once it is open
        self.port: int | None = None  # of TCP, once it is open

    def start(self) -> None:
        """Opens the sockets and serves them in greenlets. Raises SettingsError."""
        self._pid = os.getpid()
        try:
            self._open_socket()
            if self._settings.port is not None:
                self._open_port(self._settings.port)
        except SettingsError:
            self.close()
            raise

    def _open_socket(self) -> None:
        folder = open_run_dir(self._settings.run_dir or default_path())
        path = new_socket_path(folder)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            self.path = path
            Path(path).chmod(0o600)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise SettingsError(f"the management socket {path} cannot be opened: {error.strerror}") from None
        self._serve(listener, make_app(self._find_state, self._apis, check_own))
        log.info("management on %s", path)

    def _open_port(self, port: int) -> None:
        settings = self._settings
        guard = TokenGuard(read_token(settings.token_file))
        tls = {"ssl_context": _tls_context(settings)} if settings.certfile else {}
        try:
            listener = _bind(settings.host, port)
        except OSError as error:
            raise SettingsError(f"the management port {settings.host}:{port} cannot be opened: {error}") from None
        self.port = listener.getsockname()[1]
        self._serve(listener, make_app(self._find_state, self._apis, guard.check), **tls)
        url = f"{'https' if tls else 'http'}://{settings.host}:{self.port}"
        log.info("management on %s, with the token in %s", url, settings.token_file)

    def _serve(self, listener: socket.socket, app: Flask, **tls: Any) -> None:
        server = _ManagementServer(
            listener,
            app,
            log=None,
            error_log=logging.getLogger("corosrv.management.http"),
            spawn=Pool(CONNECTIONS),
            handler_class=_Handler,
            environ={"SERVER_NAME": self._settings.host, "SERVER_PORT": str(self.port or 0)},
            **tls,
        )
        if tls:
            settings = self._settings
            server.certificates = Certificates(tls["ssl_context"], settings.certfile, settings.keyfile or None)
        server.start()
        self._servers.append(server)

    def close(self) -> None:
        """Closes the sockets, and removes the one that this process has made. Never waits. Twice is harmless."""
        if os.getpid() != self._pid:
            return  # a fork's: they are its parent's
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self.path:
            with contextlib.suppress(OSError):
                Path(self.path).unlink()
            self.path = ""


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
