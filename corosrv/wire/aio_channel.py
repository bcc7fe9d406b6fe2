"""A channel for an asyncio event loop: messages arrive as calls of a function, and sending never waits."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic

from corosrv.errors import ChannelClosed, WireError
from corosrv.wire import descriptors
from corosrv.wire.codec import Codec, In, Out
from corosrv.wire.descriptors import Attachments
from corosrv.wire.frame import MAX_FRAME, Frames, encode

_READ_SIZE = 256 << 10  # bytes
_MOST_UNSENT = 1 << 20  # bytes, above which wait_until_sent() waits


class AioChannel(Generic[Out, In]):
    """Owns a connected stream socket. Belongs to the loop that runs where it is made."""

    def __init__(
        self,
        sock: socket.socket,
        codec: Codec[Out, In],
        on_message: Callable[[In, tuple[int, ...]], None],
        on_end: Callable[[str], None],
        limit: int = MAX_FRAME,
    ) -> None:
        """Calls `on_message` with each message and the descriptors that came with it, which it owns from then on.

        It may raise WireError for a message that is not allowed. Calls `on_end` once, with the reason, when the other
        side has closed, or what it sends cannot be understood or is not allowed.
        """
        sock.setblocking(False)
        self._socket = sock
        self._codec = codec
        self._on_message = on_message
        self._on_end = on_end
        self._limit = limit
        self._frames = Frames(limit)
        self._attachments = Attachments()
        self._unsent: deque[tuple[memoryview, tuple[int, ...]]] = deque()  # with descriptors of our own, to be closed
        self._n_unsent = 0  # bytes
        self._waiters: list[asyncio.Future[None]] = []  # in wait_until_sent
        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def send(self, message: Out, fds: Sequence[int] = ()) -> None:
        """Sends all of the message or nothing, in the order of the calls. Never waits.

        The descriptors `fds` go with the message; they stay the caller's. Raises FrameTooLarge, what the codec raises,
        ValueError for too many descriptors, and ChannelClosed when either side has closed.
        """
        descriptors.check_number(fds)
        frame = memoryview(encode(self._codec.encode(message), self._limit))
        if self.is_closed:
            raise ChannelClosed("the channel is closed")
        n_written = 0 if self._unsent else self._write(frame, fds)
        if n_written < len(frame):
            if not self._unsent:
                self._loop.add_writer(self._socket, self._flush)
            self._unsent.append((frame[n_written:], () if n_written else tuple(map(os.dup, fds))))
            self._n_unsent += len(frame) - n_written

    async def wait_until_sent(self) -> None:
        """Waits while much is unsent, as the other side does not read."""
        while self._n_unsent > _MOST_UNSENT and not self.is_closed:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def _write(self, data: memoryview, fds: Sequence[int]) -> int:
        try:
            return descriptors.send(self._socket, data, fds) if fds else self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end(f"the channel is closed: {error}")
            raise ChannelClosed(f"the channel is closed: {error}") from error

    def _flush(self) -> None:
        try:
            while self._unsent:
                frame, fds = self._unsent[0]
                n_written = self._write(frame, fds)
                self._n_unsent -= n_written
                if n_written:
                    descriptors.close_all(fds)
                    fds = ()
                if n_written < len(frame):
                    self._unsent[0] = frame[n_written:], fds
                    break
                self._unsent.popleft()
        except ChannelClosed:
            return
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self._n_unsent <= _MOST_UNSENT:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _read(self) -> None:
        try:
            data, fds = descriptors.receive(self._socket, _READ_SIZE)
            if not data:
                self._end("the other side has closed the channel" if not self._frames.is_partial else "half a message")
                return
            self._feed(data, fds)
        except BlockingIOError:
            return
        except WireError as fault:
            self._end(str(fault))
        except OSError as error:  # reset
            self._end(str(error))

    def _feed(self, data: bytes, fds: list[int]) -> None:
        arrived = self._frames.feed(data)
        self._attachments.arrive(fds, len(arrived), self._frames.is_partial)
        for frame in arrived:
            own_fds = self._attachments.take()
            message = self._codec.decode(frame)
            if message is None:
                descriptors.close_all(own_fds)
            else:
                self._on_message(message, own_fds)
            if self.is_closed:
                return

    def _end(self, reason: str) -> None:
        if not self.is_closed:
            self.close()
            self._on_end(reason)

    def close(self) -> None:
        """Closes the channel; `on_end` is not called. Later calls do nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._loop.remove_reader(self._socket)
        if self._unsent:
            self._loop.remove_writer(self._socket)
        for _, fds in self._unsent:
            descriptors.close_all(fds)
        self._unsent.clear()
        self._n_unsent = 0
        self._wake()
        self._attachments.close()
        self._socket.close()
