"""Counts the calls that the gRPC process answers, and tells the server of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import grpc

from corosrv.dialects.kserve.grpc.messages import GrpcCounts

TELL_AFTER = 0.05  # seconds in which counts gather before the server is told


class CallCounts:
    """Counts calls by method and code, and open streams. Belongs to one event loop."""

    def __init__(self, tell: Callable[[GrpcCounts], None]) -> None:
        """`tell`: sends what has changed; it must not wait."""
        self._tell = tell
        self._ended: Counter[tuple[str, str]] = Counter()
        self._n_streams = 0
        self._is_due = False

    def count(self, method: str, code: grpc.StatusCode) -> None:
        """Counts a call that has ended."""
        self._ended[method, code.name] += 1
        self._plan()

    @contextlib.contextmanager
    def open_stream(self) -> Iterator[None]:
        """Counts a stream as open while the `with` block runs."""
        self._n_streams += 1
        self._plan()
        try:
            yield
        finally:
            self._n_streams -= 1
            self._plan()

    def _plan(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(TELL_AFTER, self.flush)

    def flush(self) -> None:
        """Tells the server now of what has changed since it was told last."""
        self._is_due = False
        ended, self._ended = self._ended, Counter()
        self._tell(GrpcCounts([(method, code, n) for (method, code), n in ended.items()], self._n_streams))
