"""Sends descriptors beside messages over a Unix socket (SCM_RIGHTS)."""

from __future__ import annotations

import _socket
import array
import contextlib
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from corosrv.base.errors import BadFrame

MAX_FDS = 200  # with one message; the kernel takes 253

_SIZE = array.array("i").itemsize
_ROOM = socket.CMSG_SPACE(MAX_FDS * _SIZE)

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
    data, ancillary, seen_flags, _ = sock.recvmsg(n_bytes, _ROOM, socket.MSG_CMSG_CLOEXEC | flags)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % _SIZE])
    if seen_flags & socket.MSG_CTRUNC:
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
