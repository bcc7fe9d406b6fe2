"""Asks /health again and again from a process of its own, and tells how long the answers took."""

from __future__ import annotations

import multiprocessing
import socket
import time
from multiprocessing.connection import Connection

INTERVAL = 0.05  # seconds


class HealthProbe:
    """Runs from start() to stop()."""

    def __init__(self, address: tuple[str, int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop, theirs = context.Pipe()
        self._process = context.Process(target=_probe, args=(address, theirs), daemon=True)

    def start(self) -> None:
        self._process.start()
        self._stop.recv()  # it has had its first answer

    def stop(self) -> list[float]:
        """Seconds that each answer took; an answer that never came counts as 60."""
        self._stop.send(None)
        taken: list[float] = self._stop.recv()
        self._process.join(10)
        return taken


def _probe(address: tuple[str, int], connection: Connection) -> None:
    taken: list[float] = []
    _ask(address)
    connection.send(None)
    while not connection.poll(INTERVAL):
        taken.append(_ask(address))
    connection.send(taken)


def _ask(address: tuple[str, int]) -> float:
    began = time.monotonic()
    try:
        with socket.create_connection(address, timeout=60) as asking:
            asking.settimeout(60)
            asking.sendall(b"GET /health HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n")
            answer = asking.recv(4096)
        return time.monotonic() - began if b" 200 " in answer else 60.0
    except OSError:
        return 60.0
