"""Holds the content of one object: small ones as bytes, large ones in a sealed memory file that can be passed on."""

from __future__ import annotations

import os
from collections.abc import Iterable

from corosrv.workers.wire import attached

MIN_FILE = 64 << 10  # bytes; smaller contents need no descriptor


class ObjectContent:
    """Holds immutable bytes. Owns the memory file, if there is one; whoever passes the descriptor on duplicates it."""

    __slots__ = ("_bytes", "_fd", "size")

    def __init__(self, data: bytes = b"", fd: int | None = None, size: int = 0) -> None:
        """Takes either bytes, or a sealed memory file of `size` bytes, which is the content's from now on."""
        self._bytes = data
        self._fd = fd
        self.size = size if fd is not None else len(data)

    @classmethod
    def copy(cls, pieces: Iterable[bytes | memoryview]) -> ObjectContent:
        """Copies pieces into a content, which chooses its form by their size. Raises OSError."""
        pieces = list(pieces)
        size = sum(map(len, pieces))
        if size < MIN_FILE:
            return cls(b"".join(pieces))
        return cls(fd=attached.make(pieces), size=size)

    @property
    def fd(self) -> int | None:
        """The descriptor of the memory file; None for a small content, and after close()."""
        return self._fd

    def view(self) -> memoryview:
        """Returns the bytes, without a copy. The view stays valid after close()."""
        if self._fd is None:
            return memoryview(self._bytes)
        return attached.map_value(self._fd, self.size)

    def close(self) -> None:
        """Closes the descriptor; views stay valid. Twice is harmless."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
