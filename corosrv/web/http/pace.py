"""Limits how slowly a client may send: a deadline that comes nearer for those who send too little."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

import gevent
from gunicorn.http.errors import LimitRequestHeaders
from gunicorn.http.unreader import SocketUnreader

from corosrv.base.waits import awake_clock

# Of all fields together, with the request line. gunicorn bounds each field and their number.
MAX_HEAD_BYTES = 8192 + 65_536
# Reading what is there already never waits; after that long the others get their turn.
_TURN = 0.01  # seconds


def let_others() -> None:
    """Lets all other greenlets run, also those whose sockets have just turned readable, which sleep(0) does not."""
    gevent.sleep(1e-6)


class TooSlow(TimeoutError):
    """The client sends more slowly than it has to.

    No CorosrvError: it passes through gunicorn's readers, which take it for the time-out of a socket, and is answered
    here where no protocol has seen the request yet.
    """


@dataclass(slots=True)
class Pace:
    """A client's deadline: everything within `limit` seconds, and after `grace` at least `rate` bytes a second.

    Its moments are those of the awake clock: what this process slept through is not counted.
    """

    began: float
    limit: float  # seconds
    grace: float = float("inf")  # seconds
    rate: float = 1.0
    n_read: int = 0

    def remaining(self, now: float) -> float:
        """Returns the seconds until the deadline, which every byte that comes moves."""
        return min(self.limit, self.grace + self.n_read / self.rate) - (now - self.began)


class PacedUnreader(SocketUnreader):  # type: ignore[misc]
    """gunicorn's reading end of one connection, with a pace to keep and turns to take. Belongs to one greenlet."""

    # gunicorn would receive a mebibyte at once, and copy what is left of it for each piece that is taken.
    max_body_chunk = 128 << 10  # bytes

    def __init__(self, source: Any, write_timeout: float | None = None) -> None:
        """`write_timeout`: what the socket has while nobody reads."""
        super().__init__(source)
        self._write_timeout = write_timeout
        self._pace: Pace | None = None
        self._behind_line: Pace | None = None  # takes over when the request line has come
        self._n_left = sys.maxsize  # bytes that may still come
        self._turn_began = time.monotonic()

    def begin_head(self, line: Pace, head: Pace) -> None:
        """Begins to read a request line and fields, with the paces of the line and of the whole head."""
        self._pace, self._behind_line = line, head
        self._n_left = MAX_HEAD_BYTES
        self._look_for_line(self.buf.getvalue())

    def begin_body(self, pace: Pace) -> None:
        """Begins to read a body. Its size is not limited here: whoever reads it knows how much is wanted."""
        self._pace, self._behind_line = pace, None
        self._n_left = sys.maxsize

    def _look_for_line(self, data: bytes) -> None:
        if self._behind_line is not None and b"\n" in data:
            self._pace, self._behind_line = self._behind_line, None

    @property
    def has_buffered(self) -> bool:
        """True when a next request, or its beginning, is in the buffer."""
        return bool(self.buf.getbuffer().nbytes)

    def give_way(self) -> None:
        """Lets others run if this turn was long enough: a client that sends ahead always has more. May wait."""
        if time.monotonic() - self._turn_began > _TURN:
            let_others()
            self._turn_began = time.monotonic()

    def chunk(self, size_hint: int | None = None) -> bytes:
        """Reads what comes next; waits for it. Raises TooSlow, and LimitRequestHeaders for a head without end."""
        self.give_way()
        if self._pace is not None:
            # With 0 for a client whose time is over it takes what is there and does not wait: whoever has sent
            # everything is not too slow, however late this process reads it.
            self.sock.settimeout(max(0.0, self._pace.remaining(awake_clock.now())))
        try:
            data: bytes = super().chunk(size_hint)
        except (TimeoutError, BlockingIOError):
            raise TooSlow from None
        finally:
            self.sock.settimeout(self._write_timeout)
        self._count(data)
        return data

    def _count(self, data: bytes) -> None:
        self._look_for_line(data)
        if self._pace is not None:
            self._pace.n_read += len(data)
        self._n_left -= len(data)
        if self._n_left < 0:
            raise LimitRequestHeaders("all fields together")
