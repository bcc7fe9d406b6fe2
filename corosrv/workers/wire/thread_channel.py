"""Carries messages for threads, which wait by blocking: the worker's side.

Imports nothing of gevent, which workers do without.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Generic

from corosrv.base.errors import ChannelClosed
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import MAX_FRAME, Codec, In, Out, ReceiveQueue, framed

_READ_SIZE = 256 << 10  # bytes


class ThreadChannel(Generic[Out, In]):
    """Owns a connected stream socket. Any thread may send or close; one at a time receives."""

    def __init__(self, sock: socket.socket, codec: Codec[Out, In], *, takes_fds: bool = False) -> None:
        """`takes_fds`: descriptors that come with messages are kept for take_fds(); else the kernel drops them."""
        sock.setblocking(True)
        self._socket = sock
        self._codec = codec
        self._takes_fds = takes_fds
        self._arrived = ReceiveQueue(MAX_FRAME)
        self._sending = threading.Lock()
        self._is_broken = False
        self._fds: tuple[int, ...] = ()  # of the message received last

    @classmethod
    def inherited(cls, fd: int, codec: Codec[Out, In], *, takes_fds: bool = False) -> ThreadChannel[Out, In]:
        """Makes a channel of a descriptor that this process inherited, and keeps it from child processes."""
        sock = socket.socket(fileno=fd)
        sock.set_inheritable(False)
        return cls(sock, codec, takes_fds=takes_fds)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Out, fds: Sequence[int] = ()) -> None:
        """Sends all of the message or nothing, in the order of the calls. Waits while the other side does not read.

        The descriptors `fds` go with the message and stay the caller's. Raises ValueError for too many, FrameTooLarge,
        what the codec raises, and ChannelClosed when either side has closed.
        """
        descriptors.check_number(fds)
        frame = framed(self._codec.encode(message), MAX_FRAME)
        with self._sending:
            if self._is_broken:
                raise ChannelClosed("the channel is closed")
            # Unless sendall returns, part of a frame may be out, and nothing can follow it.
            self._is_broken = True
            try:
                n_sent = descriptors.send(self._socket, frame, fds) if fds else 0
                self._socket.sendall(memoryview(frame)[n_sent:])
            except OSError as error:
                raise ChannelClosed(f"the channel is closed: {error}") from error
            self._is_broken = False

    def receive(self) -> In | None:
        """Returns the next message, or None when either side has closed. Waits. Raises BadFrame."""
        return self._receive(0)

    def receive_nowait(self) -> In | None:
        """Returns what receive() would. Raises BlockingIOError where that would wait, and BadFrame."""
        return self._receive(socket.MSG_DONTWAIT)

    def _receive(self, flags: int) -> In | None:
        while True:
            while (arrived := self._arrived.take()) is not None:
                descriptors.close_all(self._fds)
                data, self._fds = arrived
                message = self._codec.decode(data)
                if message is not None:
                    return message
            data, fds = self._read(flags)
            if not data:
                self._arrived.end()
                return None
            self._arrived.feed(data, fds)

    def _read(self, flags: int) -> tuple[bytes, list[int]]:
        try:
            if self._takes_fds:
                return descriptors.receive(self._socket, _READ_SIZE, flags)
            return self._socket.recv(_READ_SIZE, flags), []
        except OSError as error:  # reset, or closed by ourselves
            if flags and isinstance(error, BlockingIOError):
                raise
            return b"", []

    def take_fds(self) -> tuple[int, ...]:
        """Returns the descriptors that came with the message received last; the caller closes them."""
        fds, self._fds = self._fds, ()
        return fds

    def close(self) -> None:
        """Closes the channel; a thread that waits in receive() gets None. Later calls do nothing."""
        self._is_broken = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # what wakes a receiver; close alone would leave it waiting
        self._socket.close()
        descriptors.close_all(self.take_fds())
        self._arrived.close()
