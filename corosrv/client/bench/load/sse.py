"""Splits bytes into server-sent events, wherever the bytes are cut."""

from __future__ import annotations

PREFIX = b"data: "


class Scanner:
    """Finds the data of each event."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of every event that `data` completes; events without any are left out."""
        if self._tail:
            data = self._tail + data
        # JSON has no bare carriage return. One at the very end stays in the tail until its line feed is there.
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        *blocks, self._tail = data.split(b"\n\n")
        return [event for block in blocks if (event := _data(block))]


def _data(block: bytes) -> bytes:
    if block.startswith(PREFIX) and b"\n" not in block:  # what nearly all events look like
        return block[len(PREFIX) :]
    lines = (line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(lines)
