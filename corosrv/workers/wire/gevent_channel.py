"""Carries messages for greenlets, which wait through the hub: the server's side."""

from __future__ import annotations

import _socket
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Generic

import gevent.event
from gevent.hub import get_hub

from corosrv.base.errors import BadFrame, ChannelClosed
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import MAX_FRAME, Codec, In, Out, ReceiveQueue, SendQueue, framed

_READ_SIZE = 256 << 10  # bytes
_READ, _WRITE = 1, 2  # what a watcher of gevent watches for


def _nothing() -> None:
    pass


class GeventChannel(Generic[Out, In]):
    """Owns a connected stream socket and its watchers. Belongs to the thread of the hub that it was made on.

    The hub reads only while receive() waits, so a side that stops receiving stops the other side.
    """

    def __init__(
        self, sock: _socket.socket, codec: Codec[Out, In], limit: int = MAX_FRAME, *, takes_fds: bool = False
    ) -> None:
        """`takes_fds`: descriptors that come with messages are kept for take_fds(); else the kernel drops them."""
        sock.setblocking(False)
        self._socket = sock
        self._codec = codec
        self._limit = limit
        self._takes_fds = takes_fds
        self._arrived = ReceiveQueue(limit)
        self._has_news = gevent.event.Event()  # something has arrived, or the channel has ended
        self._is_over = False  # nothing more arrives
        self._fault: BadFrame | None = None  # of what arrived last
        self._unsent = SendQueue()
        self._fds: tuple[int, ...] = ()  # of the message received last
        self.is_closed = False  # by this side
        loop = get_hub().loop
        self._readable: Any = loop.io(sock.fileno(), _READ)
        self._writable: Any = loop.io(sock.fileno(), _WRITE)
        self.n_bytes = 0  # of the message received last
        self.on_sent: Callable[[], None] = _nothing  # called when the socket has taken what it did not take at once

    def send(self, message: Out, fds: Sequence[int] = ()) -> None:
        """Sends all of the message or nothing, in the order of the calls. Never waits: the hub writes later what the
        socket does not take now, so callers must limit how much is unsent.

        The descriptors `fds` go with the message; they stay the caller's, who may close them at once. Raises
        FrameTooLarge, what the codec raises, ValueError for too many descriptors, and ChannelClosed when either side
        has closed.
        """
        descriptors.check_number(fds)
        frame = memoryview(framed(self._codec.encode(message), self._limit))
        if self.is_closed:
            raise ChannelClosed("the channel is closed")
        n_written = 0 if self._unsent else self._write(frame, fds)
        if n_written < len(frame):
            self._unsent.add(frame[n_written:], () if n_written else fds)
            self._writable.start(self._flush)

    def _write(self, data: memoryview, fds: Sequence[int]) -> int:
        try:
            return descriptors.send(self._socket, data, fds) if fds else self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end()  # wakes a receiver, too
            raise ChannelClosed(f"the channel is closed: {error}") from error

    def _flush(self) -> None:
        try:
            while self._unsent:
                if not self._unsent.advance(self._write(*self._unsent.head)):
                    return
        except ChannelClosed:
            self._unsent.close()
        self._writable.stop()
        self.on_sent()

    @property
    def n_unsent(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._unsent.n_bytes

    def take_fds(self) -> tuple[int, ...]:
        """Returns the descriptors that came with the message received last; the caller closes them."""
        fds, self._fds = self._fds, ()
        return fds

    def receive(self) -> In | None:
        """Returns the next message, or None when either side has closed. Waits. Raises BadFrame, which ends it."""
        while True:
            while (arrived := self._arrived.take()) is not None:
                descriptors.close_all(self._fds)
                data, self._fds = arrived
                self.n_bytes = len(data)
                message = self._codec.decode(data)
                if message is not None:
                    return message
            if self._is_over:
                if self._fault is not None:
                    raise self._fault
                return None
            self._has_news.clear()
            self._readable.start(self._read)
            self._has_news.wait()

    def _read(self) -> None:
        data, fds = b"", list[int]()
        try:
            if self._takes_fds:
                data, fds = descriptors.receive(self._socket, _READ_SIZE)
            else:
                data = self._socket.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except BadFrame as fault:
            self._fault = fault
        except OSError:  # reset
            pass
        self._feed(data, fds)

    def _feed(self, data: bytes, fds: list[int]) -> None:
        try:
            if data:
                self._arrived.feed(data, fds)
            else:
                self._arrived.end()
        except BadFrame as fault:
            self._fault = fault
        if self._arrived:
            self._readable.stop()
            self._has_news.set()
        if not data or self._fault:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._readable.stop()
        self._has_news.set()

    def hang_up(self) -> None:
        """Ends the connection: nothing new arrives or is sent. What has arrived can still be received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the channel; a greenlet that waits in receive() gets None. Later calls do nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._arrived.close()
        self._unsent.close()
        descriptors.close_all(self.take_fds())
        self._end()
        # Before the socket: libev aborts a process that watches a closed descriptor.
        self._readable.close()
        self._writable.close()
        self._socket.close()
