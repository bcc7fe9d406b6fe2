"""Carries messages for an asyncio event loop: they arrive as calls of a function, and sending never waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Generic

from corosrv.base.errors import ChannelClosed, WireError
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import MAX_FRAME, Codec, In, Out, ReceiveQueue, SendQueue, framed

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
        self._arrived = ReceiveQueue(MAX_FRAME)
        self._unsent = SendQueue()
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
        frame = memoryview(framed(self._codec.encode(message), MAX_FRAME))
        if self.is_closed:
            raise ChannelClosed("the channel is closed")
        n_written = 0 if self._unsent else self._write(frame, fds)
        if n_written < len(frame):
            if not self._unsent:
                self._loop.add_writer(self._socket, self._flush)
            self._unsent.add(frame[n_written:], () if n_written else fds)

    async def wait_until_sent(self) -> None:
        """Waits while much is unsent, as the other side does not read."""
        while self._unsent.n_bytes > _MOST_UNSENT and not self.is_closed:
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
                if not self._unsent.advance(self._write(*self._unsent.head)):
                    break
        except ChannelClosed:
            return
        if not self._unsent:
            self._loop.remove_writer(self._socket)
        if self._unsent.n_bytes <= _MOST_UNSENT:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _read(self) -> None:
        try:
            data, fds = descriptors.receive(self._socket, _READ_SIZE)
            if data:
                self._arrived.feed(data, fds)
                self._hand_over()
            else:
                self._arrived.end()
                self._end("the other side has closed the channel")
        except BlockingIOError:
            return
        except WireError as fault:
            self._end(str(fault))
        except OSError as error:  # reset
            self._end(str(error))

    def _hand_over(self) -> None:
        """Hands the messages that have arrived to `on_message`, until that closes the channel."""
        while (arrived := self._arrived.take()) is not None:
            data, fds = arrived
            message = self._codec.decode(data)
            if message is None:
                descriptors.close_all(fds)
            else:
                self._on_message(message, fds)

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
        self._unsent.close()
        self._wake()
        self._arrived.close()
        self._socket.close()
