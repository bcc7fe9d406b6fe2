"""Reads one client's requests in order, each in time, and closes its connection without losing an answer."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gunicorn.http.errors import InvalidRequestLine, NoMoreData
from gunicorn.http.message import Request
from gunicorn.http.parser import Parser

from corosrv.base.waits import awake_clock
from corosrv.web.http import message, refusal
from corosrv.web.http.pace import Pace, PacedUnreader, let_others

_FIRST_LINE = 5.0  # seconds
_BODY_GRACE = 10.0  # seconds in which a body may be slower than it has to be
_FORGET_SECONDS = 2.0  # for what is left of a body, and for what a refused client still sends
_BEGINNINGS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&'*+-.^_`|~0123456789\r")


@dataclass(frozen=True)
class ClientLimits:
    """The seconds in which a client has to send a request and to accept a piece of an answer; bytes a second."""

    head: float = 10.0
    body: float = 30.0
    body_rate: float = 1024.0
    write: float = 30.0

    def pace_of_line(self, now: float) -> Pace:
        return Pace(now, min(_FIRST_LINE, self.head))

    def pace_of_head(self, now: float) -> Pace:
        return Pace(now, self.head)

    def pace_of_body(self, now: float) -> Pace:
        return Pace(now, self.body, _BODY_GRACE, self.body_rate)


class _ClientParser(Parser):  # type: ignore[misc]
    mesg_class = message.ClientRequest


class Connection:
    """Reads requests from one client's socket, and closes it. Belongs to one greenlet."""

    __slots__ = ("_idle_seconds", "_limits", "_parser", "_socket", "_unreader", "is_idle")

    def __init__(self, cfg: Any, client: Any, address: Any, limits: ClientLimits) -> None:
        self._socket = client
        self._limits = limits
        self._idle_seconds = float(cfg.keepalive)
        self._parser = _ClientParser(cfg, client, address)
        self._unreader = self._parser.unreader = PacedUnreader(client, limits.write)
        client.settimeout(limits.write)
        self.is_idle = False

    def requests(self) -> Iterator[Request]:
        """Yields one request after the other, each once the last is answered. Ends when the client leaves or should.

        Waits. Raises ParseException or TooSlow for a request that cannot be read; the connection is useless then.
        """
        while self._wait():
            now = awake_clock.now()
            self._unreader.begin_head(self._limits.pace_of_line(now), self._limits.pace_of_head(now))
            request = self._next()
            if request is None:
                return
            message.prepare(request, self._socket)
            self._unreader.begin_body(self._limits.pace_of_body(awake_clock.now()))
            yield request
            if not self._forget_body():
                return

    def _wait(self) -> bool:
        """Waits for the beginning of a request; False when none comes in time. Raises InvalidRequestLine."""
        if self._unreader.has_buffered:
            self._unreader.give_way()
            return True
        self.is_idle = True
        self._socket.settimeout(self._idle_seconds or _FIRST_LINE)
        try:
            data = self._socket.recv(8192)
        except OSError:
            return False
        finally:
            self.is_idle = False
            self._socket.settimeout(self._limits.write)
        if data and data[0] not in _BEGINNINGS:
            raise InvalidRequestLine("")
        self._unreader.unread(data)
        return bool(data)

    def _next(self) -> Request | None:
        with suppress(StopIteration, NoMoreData):  # it left, or said that there is no more
            return next(self._parser)
        return None

    def _forget_body(self) -> bool:
        """Skips the unread rest of the last body; False where the next request cannot be found behind it. Waits."""
        request = self._parser.mesg
        if message.is_read_out(request):
            self._parser.mesg = None  # gunicorn would look for the rest of its body once more
            return not request.should_close()
        if not message.is_worth_reading_on(request):
            return False
        with suppress(Exception):  # a fault in bytes that nobody wanted only ends the connection
            deadline = time.monotonic() + _FORGET_SECONDS
            return bool(self._parser.finish_body(deadline, message.MAX_FORGOTTEN + 1))
        return False

    def refuse(self, error: BaseException) -> None:
        """Answers with the error that ends the connection. Waits; a client that left is no error."""
        with suppress(OSError):
            self._socket.settimeout(_FORGET_SECONDS)
            self._socket.sendall(refusal.answer(refusal.refusal(error)))

    def hang_up(self) -> None:
        """Closes the connection if it waits for a next request. Never waits."""
        if self.is_idle:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """Resets the connection at once; the system forgets what the client has not accepted. Never waits."""
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self, patience: float = _FORGET_SECONDS) -> None:
        """Closes the connection; waits up to `patience` seconds.

        What the client still sends is read for that long: to close on it would destroy the last answer.
        """
        with suppress(OSError):  # also when it is closed
            self._socket.shutdown(socket.SHUT_WR)
            deadline = time.monotonic() + patience
            while (remaining := deadline - time.monotonic()) > 0:
                self._socket.settimeout(remaining)
                if not self._socket.recv(65_536):
                    break
                let_others()  # a fast client always has more
        self._socket.close()
