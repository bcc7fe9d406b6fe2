"""Sends the pieces of a stream straight through gunicorn's socket, where that is what gunicorn would do itself.

A piece that goes the ordinary way costs, besides the send, a getsockopt, five calls in Python and two switches of
greenlets; at thousands of pieces a second that is a third of the front's time.
"""

from __future__ import annotations

import _socket
from typing import Any

import gevent.socket

from corosrv.web.http.message import LAST_CHUNK, HttpResponse, chunk_of
from corosrv.web.http.patient_socket import PatientSocket


class DirectSender:
    """Frames pieces of a chunked body whose headers were sent.

    The last piece has the end of the body with it: a send of its own would wake the client once more.
    """

    __slots__ = ("_answer", "_raw", "_send", "_unsent")

    def __init__(self, answer: HttpResponse) -> None:
        self._answer = answer
        self._send = _socket.socket.send
        self._raw = answer.sock._sock
        self._unsent = b""

    def send(self, piece: bytes, *, is_last: bool = False) -> bool:
        """Sends one piece, not empty. Never waits; False when the client is slow, and flush() has to send the rest."""
        chunk = chunk_of(piece)
        if is_last:
            chunk += LAST_CHUNK
            self._answer.is_ended = True
        try:
            n_sent = self._send(self._raw, chunk)
        except BlockingIOError:
            n_sent = 0
        if n_sent == len(chunk):
            return True
        self._unsent = chunk[n_sent:]
        return False

    def flush(self) -> None:
        """Sends what is left of the last piece; waits for a slow client, at most the socket's time-out."""
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._answer.sock.sendall(unsent)


def direct_sender(start_response: Any) -> DirectSender | None:
    """Returns a sender for the answer that `start_response` has begun, or None where pieces must go the ordinary way.

    Only that of this server's own answers will do: a wrapped one belongs to a middleware that may change the body.
    """
    answer = getattr(start_response, "__self__", None)
    if not isinstance(answer, HttpResponse) or not answer.chunked:
        return None
    # Exactly these classes: TLS has one of its own, and other workers have blocking sockets.
    return DirectSender(answer) if type(answer.sock) in (PatientSocket, gevent.socket.socket) else None
