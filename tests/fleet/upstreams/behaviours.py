"""What scripted upstreams do in tests of a pool, and what those look at."""

from __future__ import annotations

import threading
from typing import Any

from tests.fleet.upstreams.pool_process import PoolProcess
from tests.support.scripted_upstream import Behaviour, Handler, ScriptedUpstream, echo


class Gate:
    """Lets answers go on when a test says so."""

    def __init__(self, behaviour: Behaviour = echo) -> None:
        self.opening = threading.Event()
        self._behaviour = behaviour
        self._arrivals = threading.Semaphore(0)

    def await_arrivals(self, n: int) -> None:
        for _ in range(n):
            assert self._arrivals.acquire(timeout=15)

    def __call__(self, handler: Handler) -> None:
        self._arrivals.release()
        assert self.opening.wait(20)
        self._behaviour(handler)


class Streams:
    """Begins a stream, and notes when its connection was closed from the other end."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.is_closed = threading.Event()

    def __call__(self, handler: Handler) -> None:
        handler.begin_stream()
        handler.chunk(b"first")
        handler.connection.settimeout(0.02)
        while not self.go_on.is_set():
            try:
                if not handler.connection.recv(1):
                    self.is_closed.set()
                    return
            except TimeoutError:
                pass
        handler.chunk(b" last")
        handler.end_stream()


class InTurn:
    """Answers each call by the next behaviour, and those that follow by the last."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self._behaviours = list(behaviours)
        self._lock = threading.Lock()

    def __call__(self, handler: Handler) -> None:
        with self._lock:
            behaviour = self._behaviours.pop(0) if len(self._behaviours) > 1 else self._behaviours[0]
        behaviour(handler)


def ends(results: list[dict[str, Any]]) -> list[list[str]]:
    return [result["ends"] for result in results]


def bodies(upstream: ScriptedUpstream) -> list[str]:
    return [body.decode() for _, _, body in upstream.requests]


def one(pool: PoolProcess) -> dict[str, Any]:
    (upstream,) = pool.do("upstreams")
    return upstream


def begin_call(pool: PoolProcess, url: str) -> str:
    """Adds an upstream and waits for the first piece of a call `c` to it. Returns the id of the upstream."""
    id, _ = pool.do("add", url=url)
    pool.do("submit", names=["c"])
    pool.do("await_piece", name="c")
    return str(id)
