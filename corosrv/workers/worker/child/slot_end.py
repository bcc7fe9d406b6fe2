"""The child's end of one slot's channel."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Generic

from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.thread_channel import ThreadChannel
from corosrv.workers.worker.child.outbox import Drops, Ferry, Outbox


class SlotEnd(Generic[Out, In]):
    """Owns an inherited socket. Messages come in by one thread or by an event loop; any thread sends."""

    def __init__(
        self, id: int, fd: int, codec: Codec[Out, In], ferry: Ferry, drops: Drops, *, takes_fds: bool = False
    ) -> None:
        """`takes_fds`: descriptors that come with messages are kept for take_fds(); else the kernel drops them."""
        self.id = id
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._channel: ThreadChannel[Out, In] = ThreadChannel(self._socket, codec, takes_fds=takes_fds)
        self.outbox: Outbox[Out] = Outbox(self._socket, codec, ferry, drops)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> In | None:
        """Returns the next message; None when no more come. Waits. Raises BadFrame."""
        return self._channel.receive()

    def receive_nowait(self) -> In | None:
        """Returns what receive() would. Raises BlockingIOError where that would wait, and BadFrame."""
        return self._channel.receive_nowait()

    def take_fds(self) -> tuple[int, ...]:
        """Returns the descriptors that came with the message received last; the caller closes them."""
        return self._channel.take_fds()

    def has_mail(self) -> bool:
        """Returns whether a message waits that was not received yet. Any thread."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def hang_up(self) -> None:
        """Accepts no more messages and wakes the receiver. Running calls can still answer. Any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def let_go(self) -> None:
        """Closes the socket in a forked copy."""
        self._socket.close()

    def close(self) -> None:
        self.outbox.close()
        self._channel.close()


Poison = Callable[[int, str], None]  # a slot's id, and why it can run nothing any more
