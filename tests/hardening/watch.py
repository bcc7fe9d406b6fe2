"""What has to hold whatever is sent: health answers, and what was used comes back."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType

from tests.serve.server import Server
from tests.support.waiting import eventually

SLOW = 0.1  # seconds
FROZEN = 1.0
# One late answer may be the fault of this process, whose other threads attack; so many in a row are the server's.
_IN_A_ROW = 3
_SPARE = 8  # descriptors and threads that may be left


class HealthWatch:
    """Asks for health again and again on a connection of its own, while the block lasts; fails if it was slow."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._pid = server.worker.pid
        self._is_over = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._faults: list[str] = []
        self.n_answers = 0

    def _ask(self) -> None:
        n_slow = 0
        try:
            with self._server.connect() as connection:
                while self.n_answers == 0 or not self._is_over.is_set():
                    began, waited = time.monotonic(), self._waited()
                    answer = connection.ask("GET", "/health")
                    seconds = time.monotonic() - began - (self._waited() - waited)
                    assert answer.status == 200
                    self.n_answers += 1
                    n_slow = n_slow + 1 if seconds > SLOW else 0
                    if seconds > FROZEN or n_slow == _IN_A_ROW:
                        self._faults.append(f"health took {seconds:.2f} s")
                    self._is_over.wait(0.02)
        except (OSError, AssertionError) as error:
            self._faults.append(f"health was not answered: {error!r}")

    def _waited(self) -> float:
        """Seconds that the server's thread and this one were ready to run, and others had the processor."""
        threads = (f"/proc/{self._pid}/schedstat", "/proc/thread-self/schedstat")
        return sum(int(Path(thread).read_text().split()[1]) for thread in threads) / 1e9

    def __enter__(self) -> HealthWatch:
        self._asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._asking.join(20)
        if kind is None:
            assert not self._faults, self._faults[0]


class Belongings:
    """What the server's worker held at one moment."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._worker = server.worker
        self._n_descriptors = self._worker.n_descriptors()
        self._n_threads = self._worker.n_threads()

    def check_returned(self) -> None:
        """Waits until slots, descriptors and threads are back, in the same process."""
        self._server.wait_idle()
        eventually(
            lambda: self._worker.n_descriptors() <= self._n_descriptors + _SPARE, what="its descriptors are back"
        )
        assert self._worker.n_threads() <= self._n_threads + _SPARE
        assert self._server.worker.pid == self._worker.pid
        assert "Traceback" not in self._server.log
