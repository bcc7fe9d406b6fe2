"""Keeps the frames that a socket has not taken yet, with the descriptors that go with them. Touches no socket."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence

from corosrv.workers.wire import descriptors


class SendQueue:
    """Owns frames in the order of sending, and duplicates of their descriptors until those were sent."""

    __slots__ = ("_frames", "n_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self.n_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._frames)

    def add(self, frame: memoryview, fds: Sequence[int] = ()) -> None:
        """Puts a frame, or what is left of it, behind the others. The descriptors stay the caller's.

        Raises OSError where the process can open no duplicates.
        """
        self._frames.append((frame, tuple(map(os.dup, fds))))
        self.n_bytes += len(frame)

    @property
    def head(self) -> tuple[memoryview, tuple[int, ...]]:
        """The bytes to send next, and the descriptors that go with the first of them."""
        return self._frames[0]

    def advance(self, n_sent: int) -> bool:
        """Removes what was sent of the head; its descriptors went with the first byte. Returns whether that was all."""
        frame, fds = self._frames[0]
        self.n_bytes -= n_sent
        if n_sent == len(frame):
            self._frames.popleft()
        elif n_sent:
            self._frames[0] = frame[n_sent:], ()
        if n_sent:
            descriptors.close_all(fds)
        return n_sent == len(frame)

    def close(self) -> None:
        """Drops all frames. Later calls do nothing."""
        while self._frames:
            descriptors.close_all(self._frames.popleft()[1])
        self.n_bytes = 0
