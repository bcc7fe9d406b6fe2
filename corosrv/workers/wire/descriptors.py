"""Sends descriptors beside messages over a Unix socket (SCM_RIGHTS), and large values in sealed memory files.

Nobody can change the content of such a file once it is sent. The value is copied once, into the file; the other process
maps it. Within a frame it would be copied by each buffer on its way, and the hub would wait for each copy.
"""

from __future__ import annotations

import _socket
import array
import contextlib
import errno
import fcntl
import mmap
import os
import socket
import stat
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from corosrv.base.errors import BadFrame, ProtocolError

MAX_FDS = 200  # with one message; the kernel takes 253

_SIZE = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(MAX_FDS * _SIZE)
# Plain numbers: combining flags of Python's enums takes longer than the call.
_CLOSED_ON_EXEC, _TRUNCATED = int(socket.MSG_CMSG_CLOEXEC), int(socket.MSG_CTRUNC)

AnySocket = _socket.socket | socket.socket


def check_number(fds: Sequence[int]) -> None:
    """Raises ValueError if one message cannot carry so many descriptors."""
    if len(fds) > MAX_FDS:
        raise ValueError(f"{len(fds)} descriptors for one message, where {MAX_FDS} are allowed")


def send(sock: AnySocket, data: Any, fds: Sequence[int], flags: int = 0) -> int:
    """Sends what the socket takes of `data`, with the descriptors beside its first byte; returns the number of bytes.

    Raises OSError.
    """
    return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))], flags)


def receive(sock: AnySocket, n_bytes: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """Receives up to `n_bytes` and the descriptors beside them. Raises BadFrame for too many of them, and OSError."""
    data, ancillary, seen_flags, _ = sock.recvmsg(n_bytes, _ROOM, _CLOSED_ON_EXEC | flags)
    if not ancillary and not seen_flags & _TRUNCATED:
        return data, []
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % _SIZE])
    if seen_flags & _TRUNCATED:
        close_all(fds)
        raise BadFrame("more descriptors came with a message than are allowed, or than this process can open")
    return data, list(fds)


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


class Attachments:
    """Pairs descriptors with the messages that they came with. Owns those that were not taken yet.

    The kernel ends what is received at once behind the bytes that descriptors came with. Senders write a message by
    itself. So descriptors belong to the message that began last among the bytes received with them.
    """

    def __init__(self) -> None:
        self._n_arrived = 0  # messages
        self._n_taken = 0
        self._by_message: dict[int, list[int]] = {}

    def arrive(self, fds: list[int], n_messages: int, is_partial: bool) -> None:
        """Records the messages that were completed, whether another has begun, and the descriptors beside them."""
        self._n_arrived += n_messages
        if fds:
            self._by_message.setdefault(self._n_arrived if is_partial else self._n_arrived - 1, []).extend(fds)

    def take(self) -> tuple[int, ...]:
        """Returns the descriptors of the next message; the caller closes them."""
        self._n_taken += 1
        return tuple(self._by_message.pop(self._n_taken - 1, ()))

    def close(self) -> None:
        """Closes descriptors that were not taken. Later calls do nothing."""
        for fds in self._by_message.values():
            close_all(fds)
        self._by_message.clear()


MIN_ATTACHED = 1 << 20  # bytes; smaller values are cheaper within their message

_SEAL_TRIES = 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def make(pieces: Iterable[bytes | memoryview]) -> int:
    """Returns a descriptor of a sealed memory file with this content; the caller closes it. Raises OSError."""
    fd = create()
    try:
        for piece in pieces:
            unwritten = memoryview(piece).cast("B")
            while unwritten:
                unwritten = unwritten[os.write(fd, unwritten) :]
        seal(fd)
    except BaseException:  # nobody else knows the descriptor
        os.close(fd)
        raise
    return fd


def create() -> int:
    """Returns a descriptor of an empty memory file, to be written and sealed; the caller closes it. Raises OSError."""
    return os.memfd_create("corosrv-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def seal(fd: int) -> None:
    """Seals a memory file. The kernel refuses that while it moves one of its pages, and waits for these 0.15 s each."""
    for tries_left in reversed(range(_SEAL_TRIES)):
        try:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or not tries_left:
                raise


class SealedMap(mmap.mmap):
    """The mapped content of a sealed memory file. Keeps a descriptor of it, by which the file is passed on as it is."""

    fd = -1  # none: the process had no more to give

    @classmethod
    def of_file(cls, fd: int, size: int) -> SealedMap:
        """Maps all of a file, whose descriptor stays the caller's. Raises OSError."""
        # Else mmap would keep one of its own as well, which nothing else can use.
        options = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        sealed = cls(fd, size, mmap.MAP_SHARED, mmap.PROT_READ, **options)
        with contextlib.suppress(OSError):
            sealed.fd = os.dup(fd)
        return sealed

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def map_value(fd: int, size: int) -> memoryview:
    """Maps the content of a memory file, to be read; the descriptor can be closed then.

    Raises ProtocolError unless it has the size that its sender announced, and is sealed: the sender could otherwise
    change what was checked already, or cut it and have this process killed by SIGBUS.
    """
    check(fd, size)
    return memoryview(SealedMap.of_file(fd, size) if size else b"")


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
