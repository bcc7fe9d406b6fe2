"""A load client: thousands of streams from one thread, by epoll, counting events without parsing them."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass, field

DONE = b"data: [DONE]"
EVENT = b"data: {"


@dataclass(slots=True)
class Stream:
    """One request under way."""

    socket: socket.socket
    began: float  # when it was about to connect: its server may answer before this process goes on
    tail: bytes = b""
    n_events: int = 0
    first_event: float | None = None  # seconds since it began


@dataclass(slots=True)
class Outcome:
    """The outcome of a load."""

    n_done: int = 0
    n_failed: int = 0
    n_events: int = 0
    seconds: float = 0.0
    first_events: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def request(path: str, body: bytes) -> bytes:
    lines = f"POST {path} HTTP/1.1", "Host: load", "Content-Type: application/json", f"Content-Length: {len(body)}"
    return "\r\n".join((*lines, "", "")).encode() + body


class LoadClient:
    """Opens streams and follows them to their end. One thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._epoll = select.epoll()
        self._streams: dict[int, Stream] = {}
        self.outcome = Outcome()

    @property
    def n_open(self) -> int:
        return len(self._streams)

    @property
    def n_waiting(self) -> int:
        """Streams without a first event."""
        return sum(stream.first_event is None for stream in self._streams.values())

    def open(self, sent: bytes, receive_buffer: int | None = None) -> None:
        """Connects and sends one request. `receive_buffer`: bytes that the system may keep for it."""
        connected = socket.socket()
        if receive_buffer is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connected.settimeout(10)
        began = time.monotonic()
        connected.connect(self._address)
        connected.sendall(sent)
        connected.setblocking(False)
        self._epoll.register(connected.fileno(), select.EPOLLIN)
        self._streams[connected.fileno()] = Stream(connected, began)

    def run_for(self, seconds: float) -> None:
        """Follows the streams for a while, or until all have ended."""
        end = time.monotonic() + seconds
        while self._streams and (left := end - time.monotonic()) > 0:
            for fd, _ in self._epoll.poll(min(left, 0.5), 1024):
                self._read(self._streams[fd])

    def run(self, timeout: float) -> Outcome:
        """Follows all streams to their end; those that are left at the time-out have failed."""
        began = time.monotonic()
        self.run_for(timeout)
        self.outcome.seconds = time.monotonic() - began
        for stream in list(self._streams.values()):
            self._end(stream, "time-out")
        return self.outcome

    def drop(self, stream: Stream) -> None:
        """Leaves in the middle, as impatient clients do."""
        self._forget(stream)

    def streams(self) -> list[Stream]:
        return list(self._streams.values())

    def _read(self, stream: Stream) -> None:
        try:
            data = stream.socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(stream, str(error))
            return
        if not data:
            self._end(stream, "closed before [DONE]")
            return
        if stream.first_event is None and b"data: " in data:
            stream.first_event = time.monotonic() - stream.began
        # A boundary may fall between two reads: what could begin one is looked at again.
        seen = stream.tail + data
        stream.n_events += seen.count(EVENT)
        if DONE in seen:
            self._end(stream, None)
        stream.tail = seen[-len(EVENT) + 1 :]

    def _end(self, stream: Stream, failure: str | None) -> None:
        self._forget(stream)
        self.outcome.n_events += stream.n_events
        if failure is None:
            self.outcome.n_done += 1
            self.outcome.first_events.append(stream.first_event or 0.0)
        else:
            self.outcome.n_failed += 1
            self.outcome.failures.append(failure)

    def _forget(self, stream: Stream) -> None:
        fd = stream.socket.fileno()
        self._epoll.unregister(fd)
        del self._streams[fd]
        stream.socket.close()
