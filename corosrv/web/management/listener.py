"""Serves the management API: on a private Unix socket, and over TCP where that was asked for."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from flask import Blueprint, Flask
from gevent import socket
from gevent.pool import Pool
from gevent.pywsgi import Input, WSGIServer

from corosrv.base.errors import SettingsError
from corosrv.contracts.jobs import State
from corosrv.web.management import grpc_refusal
from corosrv.web.management.grpc_refusal import PREFACE
from corosrv.web.management.guard import TokenGuard, read_token
from corosrv.web.management.routes import make_app
from corosrv.web.management.run_dir import default_path, new_socket_path, open_run_dir
from corosrv.web.management.upgrade import UpgradableHandler, check_own

log = logging.getLogger("corosrv.management")

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

    def __post_init__(self) -> None:
        if self.port is not None and not self.token_file:
            raise SettingsError("COROSRV_MGMT_PORT opens the management of this server to every user of the machine, "
                                "and needs a token: write one into a file that only you may read, and set "
                                "COROSRV_MGMT_TOKEN_FILE to its path. The socket needs none")  # fmt: skip


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
            grpc_refusal.refuse(lambda: self.rfile.read1(_READ_SIZE), self.socket.sendall)
        return ""


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
        try:
            listener = _bind(settings.host, port)
        except OSError as error:
            raise SettingsError(f"the management port {settings.host}:{port} cannot be opened: {error}") from None
        self.port = listener.getsockname()[1]
        self._serve(listener, make_app(self._find_state, self._apis, guard.check))
        log.info("management on http://%s:%d, with the token in %s", settings.host, self.port, settings.token_file)

    def _serve(self, listener: socket.socket, app: Flask) -> None:
        server = WSGIServer(
            listener,
            app,
            log=None,
            error_log=logging.getLogger("corosrv.management.http"),
            spawn=Pool(CONNECTIONS),
            handler_class=_Handler,
            environ={"SERVER_NAME": self._settings.host, "SERVER_PORT": str(self.port or 0)},
        )
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
