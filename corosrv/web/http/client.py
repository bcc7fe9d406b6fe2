"""Notices at once that a client went away, without writing to it: also while an answer is collected for it."""

from __future__ import annotations

import _socket
import socket
import ssl
from collections.abc import Callable
from typing import Any

from flask import Request

from corosrv.base.errors import ClientGone, CorosrvError, Refused
from corosrv.base.waits import own_hub
from corosrv.contracts.jobs import Chunk, Reader

_ESTABLISHED = 1  # tcp_info.tcpi_state in linux/tcp.h
_INTERVAL = 1.0  # seconds between two looks at a connection that cannot be watched

# Tokens, and the likely ones in their place, that an answer may hold that is not streamed.
MOST_LISTED = 1_000_000


class ClientWatch:
    """Calls `on_gone` from the hub, once, when the client closes its end. Close it before the socket is used again.

    Needs the server's socket and a hub: gunicorn's gevent worker gives both. Elsewhere nothing is watched, and a
    client's leaving shows at the next write. Under TLS the end cannot be told from other records: the connection's
    state is looked at once a second.
    """

    __slots__ = ("_hub", "_on_gone", "_socket", "_watcher", "is_gone")

    def __init__(self, environ: dict[str, Any], on_gone: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self.is_gone = False
        self._watcher: Any = None
        self._socket: Any = environ.get("gunicorn.socket")
        self._hub: Any = own_hub()
        if self._hub is None or self._socket is None:
            return
        if isinstance(self._socket, ssl.SSLSocket):
            self._look_at_times()
            return
        self._watcher = self._hub.loop.io(self._socket.fileno(), 1)
        self._watcher.start(self._on_readable)

    def _on_readable(self) -> None:
        try:
            # The plain method: gevent's own would wait, and the hub must not.
            peeked = _socket.socket.recv(getattr(self._socket, "_sock", self._socket), 1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            peeked = b""
        if peeked or (self._socket.family == socket.AF_UNIX and self._is_open()):
            self._watch_readable()
        else:
            self._gone()

    def _watch_readable(self) -> None:
        """Looks at times: the client's next request is waiting and hides the end of its stream, or none will follow.

        A process that relays a client's connection says so when it is to end behind the answer.
        """
        self.close()
        self._look_at_times()

    def _look_at_times(self) -> None:
        self._watcher = self._hub.loop.timer(_INTERVAL, _INTERVAL)
        self._watcher.start(self._on_timer)

    def _on_timer(self) -> None:
        if not self._is_open():
            self._gone()

    def _is_open(self) -> bool:
        """Tells whether the client has not closed its end. Never waits."""
        try:
            if self._socket.family == socket.AF_UNIX:  # an end that is closed refuses even nothing
                return _socket.socket.send(getattr(self._socket, "_sock", self._socket), b"") == 0
            state = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        except OSError:
            return False
        return bool(state == _ESTABLISHED)

    def _gone(self) -> None:
        self.close()
        self.is_gone = True
        self._on_gone()

    def close(self) -> None:
        """Stops watching. Twice is harmless."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


def _n_listed(chunk: Chunk) -> int:
    return sum(1 + len(info.top) for infos in (chunk.tokens, chunk.prompt_info) for info in infos)


def collect(
    request: Request,
    reader: Reader[Chunk],
    failure_of: Callable[[Chunk], CorosrvError | None] = lambda chunk: None,
    on_chunks: Callable[[list[Chunk]], None] = lambda chunks: None,
) -> list[Chunk]:
    """Waits for all chunks of a job that is not streamed, and closes the reader. Tells `on_chunks` of each that comes.

    Raises ClientGone when the client left meanwhile, at once what `failure_of` finds in a chunk, and Refused for an
    answer that lists more tokens than there is memory for: hundreds of bytes for each.
    """
    watch = ClientWatch(request.environ, reader.cancel)
    chunks: list[Chunk] = []
    n_listed = 0
    try:
        with reader:
            while not reader.is_finished:
                arrived = reader.take()
                on_chunks(arrived)
                if watch.is_gone:  # whose job was cancelled, which is no failure of its own
                    raise ClientGone("the client left before its answer was ready")
                for chunk in arrived:
                    if chunk.finish is not None and (failure := failure_of(chunk)) is not None:
                        raise failure
                    if chunk.tokens or chunk.prompt_info:
                        n_listed += _n_listed(chunk)
                chunks += arrived
                if n_listed > MOST_LISTED:
                    raise Refused(
                        f"the answer would list over {MOST_LISTED} likely tokens: ask for fewer tokens, answers or "
                        "likely tokens, or for a stream",
                        "logprobs",
                        "answer_too_large",
                    )
    finally:
        watch.close()
    return chunks
