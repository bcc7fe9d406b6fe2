"""Sends large values beside messages, in memory files whose content nobody can change once they are sent.

Such a value is copied once, into the file; the other process maps it. Within a frame it would be copied
by each buffer on its way, and the hub would wait for each copy.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Iterable

from corosrv.base.errors import ProtocolError

MIN_ATTACHED = 1 << 20  # bytes; smaller values are cheaper within their message

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def make(pieces: Iterable[bytes | memoryview]) -> int:
    """Returns a descriptor of a sealed memory file with this content; the caller closes it. Raises OSError."""
    fd = os.memfd_create("corosrv-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for piece in pieces:
            unwritten = memoryview(piece).cast("B")
            while unwritten:
                unwritten = unwritten[os.write(fd, unwritten) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:  # nobody else knows the descriptor
        os.close(fd)
        raise
    return fd


def map_value(fd: int, size: int) -> memoryview:
    """Maps the content of a memory file, to be read; the descriptor can be closed then.

    Raises ProtocolError unless it has the size that its sender announced, and is sealed: the sender could otherwise
    change what was checked already, or cut it and have this process killed by SIGBUS.
    """
    check(fd, size)
    return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) if size else b"")


def check(fd: int, size: int) -> None:
    """Raises ProtocolError unless the descriptor is a sealed memory file of this size."""
    try:
        status = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:  # as for a pipe, a socket or a file on a disk
        raise ProtocolError(f"an attached value is in no memory file: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or seals & _SEALS != _SEALS:
        raise ProtocolError("an attached value is in a file that is not sealed")
    if status.st_size != size:
        raise ProtocolError(f"an attached value has {status.st_size} bytes, where {size} were announced")
