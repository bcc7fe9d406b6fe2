"""The child's end of one slot's channel."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from corosrv.errors import BadFrame
from corosrv.wire.codec import StructCodec
from corosrv.wire.frame import Frames
from corosrv.wire.messages import Predict, SlotToServer, SlotToWorker
from corosrv.wire.thread_channel import ThreadChannel
from corosrv.worker.child.outbox import Drops, Ferry, Outbox

_READ_SIZE = 256 << 10  # bytes


class SlotEnd:
    """Owns an inherited socket. Predictions come in by one thread or by an event loop; any thread sends."""

    def __init__(self, id: int, fd: int, ferry: Ferry, drops: Drops) -> None:
        self.id = id
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._codec: StructCodec[SlotToServer, SlotToWorker] = StructCodec(SlotToWorker)
        self._frames = Frames()
        self._channel: ThreadChannel[SlotToServer, SlotToWorker] = ThreadChannel(self._socket, self._codec)
        self.outbox: Outbox[SlotToServer] = Outbox(self._socket, self._codec, ferry, drops)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> Predict | None:
        """Returns the next prediction; None when no more come. Waits. Raises BadFrame."""
        return self._channel.receive()

    def receive_nowait(self) -> list[Predict] | None:
        """Returns the predictions that have arrived, perhaps none; None when no more come. Raises BadFrame.

        Not to be mixed with receive().
        """
        try:
            data = self._socket.recv(_READ_SIZE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            if self._frames.is_partial:
                raise BadFrame("the channel ended within a frame")
            return None
        messages = map(self._codec.decode, self._frames.feed(data))
        return [message for message in messages if message is not None]

    def has_mail(self) -> bool:
        """Returns whether a message waits that was not received yet. Any thread."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def hang_up(self) -> None:
        """Accepts no more predictions and wakes the receiver. Running ones can still answer. Any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def let_go(self) -> None:
        """Closes the socket in a forked copy."""
        self._socket.close()

    def close(self) -> None:
        self.outbox.close()
        self._channel.close()


Poison = Callable[[int, str], None]  # a slot's id, and why it can run nothing any more
