"""Clients that each send a request, read the whole answer, and send the next one over the same connection."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from dataclasses import dataclass, field

PATIENCE = 60.0  # seconds


@dataclass(slots=True)
class Caller:
    """One connection, over which one request follows the other."""

    socket: socket.socket
    request: bytes
    sent: float = 0.0
    answer: bytearray = field(default_factory=bytearray)
    size: int | None = None  # of the whole answer, once its head is there

    def send(self) -> None:
        self.answer, self.size = bytearray(), None
        self.sent = time.perf_counter()
        self.socket.sendall(self.request)

    def take(self) -> bool:
        """Reads what has come; True where the answer is whole."""
        self.answer += self.socket.recv(262_144)
        if self.size is None:
            head, end, _ = self.answer.partition(b"\r\n\r\n")
            if not end:
                return False
            self.size = len(head) + 4 + int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        return len(self.answer) >= self.size

    @property
    def is_good(self) -> bool:
        return self.answer.startswith(b"HTTP/1.1 200 ") and b'"status":"failed"' not in self.answer[:4096]


@dataclass(slots=True)
class Outcome:
    """Seconds that each answer took, and the answers that were refusals or failures."""

    times: list[float] = field(default_factory=list)
    refusals: list[bytes] = field(default_factory=list)

    def take(self, caller: Caller) -> None:
        self.times.append(time.perf_counter() - caller.sent)
        if not caller.is_good:
            self.refusals.append(bytes(caller.answer))

    def percentile(self, percent: int) -> float:
        """In milliseconds."""
        return sorted(self.times)[len(self.times) * percent // 100] * 1e3


def run(
    address: tuple[str, int], request: bytes, n_callers: int, seconds: float = PATIENCE, most: int | None = None
) -> Outcome:
    """Sends a request over each of `n_callers` connections, and again when it was answered, for `seconds` or until
    `most` answers. Waits for the last answers."""
    outcome, deadline = Outcome(), time.perf_counter() + seconds
    with contextlib.ExitStack() as stack, contextlib.closing(select.epoll()) as polled:
        callers, n_idle = dict[int, Caller](), 0
        for _ in range(n_callers):
            connection = stack.enter_context(socket.create_connection(address, timeout=PATIENCE))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            callers[connection.fileno()] = caller = Caller(connection, request)
            polled.register(connection, select.EPOLLIN)
            caller.send()
        while n_running := len(callers) - n_idle:
            ready = polled.poll(PATIENCE)
            assert ready, f"{n_running} requests are not answered"
            for number, _ in ready:
                caller = callers[number]
                if not caller.take():
                    continue
                outcome.take(caller)
                if time.perf_counter() < deadline and len(outcome.times) != most:
                    caller.send()
                else:
                    n_idle += 1
    return outcome
