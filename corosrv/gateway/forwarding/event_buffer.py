"""Cuts a stream of bytes behind its last whole event, so that a stream which breaks off does so between two events."""

from __future__ import annotations

MAX_HELD = 1 << 20  # bytes of an event that has not ended

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class EventBuffer:
    """Holds back the beginning of an event until its end has come."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def add(self, data: bytes) -> bytes:
        """Returns the whole events that are there now; one over MAX_HELD is passed on in parts."""
        if not self._held and data.endswith(b"\n\n"):
            return data
        data = self._held + data
        end = max(data.rfind(mark) + len(mark) if mark in data else 0 for mark in _ENDS)
        if len(data) - end > MAX_HELD:
            end = len(data)
        self._held = data[end:]
        return data[:end]

    def drain(self) -> bytes:
        """Returns what is held: the end of a stream may lack its last empty line."""
        held, self._held = self._held, b""
        return held
