"""Splits what a socket has brought into messages, each with its descriptors. Touches no socket."""

from __future__ import annotations

from collections import deque

from corosrv.base.errors import BadFrame
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.descriptors import Attachments
from corosrv.workers.wire.frame import MAX_FRAME, Frames


class ReceiveQueue:
    """Owns the messages that were not taken yet, and their descriptors."""

    __slots__ = ("_attachments", "_frames", "_messages")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        """`limit`: the most bytes that a message may have."""
        self._frames = Frames(limit)
        self._messages: deque[bytes] = deque()
        self._attachments = Attachments()

    def __bool__(self) -> bool:
        """True if a whole message is there."""
        return bool(self._messages)

    def feed(self, data: bytes, fds: list[int]) -> None:
        """Adds what one read has brought. Raises BadFrame, for which the descriptors of this read are closed."""
        try:
            messages = self._frames.feed(data)
        except BadFrame:
            descriptors.close_all(fds)
            raise
        self._messages.extend(messages)
        self._attachments.arrive(fds, len(messages), self._frames.is_partial)

    def end(self) -> None:
        """Checks that the stream may end here. Raises BadFrame within a frame."""
        if self._frames.is_partial:
            raise BadFrame("the channel ended within a frame")

    def take(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Returns the next message and its descriptors, which the caller closes; None where there is none."""
        try:
            message = self._messages.popleft()
        except IndexError:  # asked first, another thread could close between question and answer
            return None
        return message, self._attachments.take()

    def close(self) -> None:
        """Drops all messages and closes their descriptors. Later calls do nothing."""
        self._messages.clear()
        self._attachments.close()
