"""A channel for greenlets, which wait through the hub: the server's side."""

from __future__ import annotations

import _socket
import contextlib
from collections import deque
from typing import Any, Generic

import gevent.event
from gevent.hub import get_hub

from corosrv.errors import BadFrame, ChannelClosed
from corosrv.wire.codec import Codec, In, Out
from corosrv.wire.frame import MAX_FRAME, Frames, encode

_READ_SIZE = 256 << 10  # bytes
_READ, _WRITE = 1, 2  # what a watcher of gevent watches for


class GeventChannel(Generic[Out, In]):
    """Owns a connected stream socket and its watchers. Belongs to the thread of the hub that it was made on.

    The hub itself reads, and no more than what is about to be received: whoever stops receiving stops the other side.
    """

    def __init__(self, sock: _socket.socket, codec: Codec[Out, In], limit: int = MAX_FRAME) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._codec = codec
        self._limit = limit
        self._frames = Frames(limit)
        self._arrived: deque[bytes] = deque()
        self._has_news = gevent.event.Event()  # something has arrived, or nothing will any more
        self._is_over = False  # nothing more arrives
        self._fault: BadFrame | None = None  # of what arrived last
        self._unsent: deque[memoryview] = deque()
        self.is_closed = False  # by this side
        loop = get_hub().loop
        self._readable: Any = loop.io(sock.fileno(), _READ)
        self._writable: Any = loop.io(sock.fileno(), _WRITE)
        self.n_bytes = 0  # of the message received last

    def send(self, message: Out) -> None:
        """All of the message or nothing, in the order of the calls. Never waits: what the socket does not take now, the
        hub writes when it does; so callers see to it that not too much is under way.

        Raises FrameTooLarge, what the codec raises, and ChannelClosed when nobody is there any more.
        """
        frame = memoryview(encode(self._codec.encode(message), self._limit))
        if self.is_closed:
            raise ChannelClosed("the channel is closed")
        if not self._unsent:
            frame = frame[self._write(frame) :]
        if frame:
            self._unsent.append(frame)
            self._writable.start(self._flush)

    def _write(self, data: memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end()  # a receiver is to hear of it, too
            raise ChannelClosed(f"the channel is closed: {error}") from error

    def _flush(self) -> None:
        try:
            while self._unsent:
                frame = self._unsent[0]
                n_written = self._write(frame)
                if n_written < len(frame):
                    self._unsent[0] = frame[n_written:]
                    return
                self._unsent.popleft()
        except ChannelClosed:
            self._unsent.clear()
        self._writable.stop()

    def receive(self) -> In | None:
        """The next message, or None when either side has closed. Waits. Raises BadFrame, and then no more arrives."""
        while True:
            while self._arrived:
                data = self._arrived.popleft()
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
        try:
            data = self._socket.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # reset
            data = b""
        try:
            if data:
                self._arrived.extend(self._frames.feed(data))
            elif self._frames.is_partial:
                raise BadFrame("the channel ended within a frame")
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
        """Nothing new may arrive, from whoever still holds the other end; what has arrived can be received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(_socket.SHUT_RDWR)

    def close(self) -> None:
        """Whoever waits is woken and sees the end. Twice is harmless."""
        if self.is_closed:
            return
        self.is_closed = True
        self._arrived.clear()
        self._unsent.clear()
        self._end()
        # Before the socket: libev aborts a process that watches a closed descriptor.
        self._readable.close()
        self._writable.close()
        self._socket.close()
