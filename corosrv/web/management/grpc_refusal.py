"""Refuses every call of a gRPC client in words: workers of other systems register over gRPC, by an address.

Such a registration (the service WorkerManagement: RegisterModel, UnregisterModel, Heartbeat) is never allowed here,
whatever it says. So no header of a request is decoded, and HTTP/2 takes a page. Source: RFC 9113 (frames), RFC 7541
(literal header fields), and gRPC's "Trailers-Only" answers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # how every connection of a client begins
MAX_FRAME = 16_384  # bytes of a frame's content, as HTTP/2 has it where nothing else was agreed
WORDS = b"workers register by joining, not by an address: corosrv worker APP --join PATH"

_HEAD = struct.Struct(">BHBBL")  # the content's length in three bytes, kind, flags, stream
_HEADERS, _SETTINGS, _PING, _CONTINUATION = 0x1, 0x4, 0x6, 0x9
_ACK, _END_STREAM, _END_HEADERS = 0x1, 0x1, 0x4
_STATUS_200 = b"\x88"  # `:status: 200` in the static table
_PERMISSION_DENIED = b"7"


class GrpcRefusal:
    """Turns what a client has sent behind its PREFACE into what it is answered. Touches no socket."""

    def __init__(self) -> None:
        self._unread = b""
        self.is_over = False  # the client breaks the protocol, and hears no more

    def begin(self) -> bytes:
        """Returns what a server sends first."""
        return _frame(_SETTINGS, 0, 0)

    def receive(self, data: bytes) -> bytes:
        """Takes bytes as they come, and returns the answer to the frames that are complete."""
        self._unread += data
        answers: list[bytes] = []
        while len(self._unread) >= _HEAD.size and not self.is_over:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._unread)
            end = _HEAD.size + (high << 16 | low)
            if end > _HEAD.size + MAX_FRAME:
                self.is_over = True
            elif len(self._unread) < end:
                break
            else:
                answers.append(_answer(kind, flags, stream & 0x7FFF_FFFF, self._unread[_HEAD.size : end]))
                self._unread = self._unread[end:]
        return b"".join(answers)


def _answer(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    if kind in (_SETTINGS, _PING) and not flags & _ACK:
        return _frame(kind, _ACK, 0, content if kind == _PING else b"")
    if kind in (_HEADERS, _CONTINUATION) and flags & _END_HEADERS:
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _REFUSAL)
    return b""


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(0, len(content), kind, flags, stream) + content


def _field(name: bytes, value: bytes) -> bytes:
    """Returns a header field as a literal, which no table keeps; both are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


_REFUSAL = _STATUS_200 + b"".join(
    (
        _field(b"content-type", b"application/grpc"),
        _field(b"grpc-status", _PERMISSION_DENIED),
        _field(b"grpc-message", WORDS),
    )
)


def refuse(read: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
    """Answers a client whose PREFACE was read until it leaves. Waits in `read`, which returns nothing at the end."""
    refusal = GrpcRefusal()
    send(refusal.begin())
    while not refusal.is_over and (data := read()):
        if answer := refusal.receive(data):
            send(answer)
