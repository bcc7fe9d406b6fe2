"""Downloads of one prediction's input files, a few at once, each within a time limit."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from corosrv.base.errors import InputFailed
from corosrv.workers.worker.values.addresses import DataUrl, is_data, make_private

AT_ONCE = 8
TIME_LIMIT = 60.0  # seconds, from a download's begin to its last byte


@dataclass(slots=True, eq=False)
class _Fetch:
    """One file to be fetched for the input `field`."""

    number: int
    field: str
    address: str
    path: str = ""
    ends_at: float = 0.0  # by the monotonic clock, once it runs


class Fetching:
    """The files of one prediction. `add` all, then `run`; `cancel` may be called from other threads at any time.

    `run` returns in time whatever the other side does: a download that hangs stays behind in its thread, which ends
    at its socket's time limit.
    """

    def __init__(self, directory: str, agent: str | None) -> None:
        self._directory = directory
        self._agent = agent
        self._fetches: list[_Fetch] = []
        self._changed = threading.Condition()  # guards what is below, and the fetches while threads run
        self._waiting: deque[_Fetch] = deque()
        self._running: dict[_Fetch, None] = {}  # the oldest first
        self._n_done = 0
        self._fault: InputFailed | None = None

    def add(self, field: str, address: str) -> int:
        """Returns the number under which `run` gives the file's path."""
        self._fetches.append(_Fetch(len(self._fetches), field, address))
        return len(self._fetches) - 1

    def run(self) -> list[str]:
        """Fetches all files; returns their paths in the order they were added. Waits. Raises the first InputFailed."""
        for fetch in self._fetches:
            if is_data(fetch.address):
                self._decode(fetch)
            else:
                self._waiting.append(fetch)
        for _ in range(min(AT_ONCE, len(self._waiting))):
            threading.Thread(target=self._work, name="corosrv-fetch", daemon=True).start()
        self._wait()
        return [fetch.path for fetch in self._fetches]

    def cancel(self) -> None:
        self._fail(InputFailed("cancelled while inputs were fetched"))

    def remove(self) -> None:
        """Cancels, and removes all files; none is created after that."""
        self.cancel()
        if self._fetches:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _decode(self, fetch: _Fetch) -> None:
        try:
            decoded = DataUrl.parse(fetch.address)
            with self._create(fetch, decoded.name) as file:
                file.write(decoded.content)
        except ValueError as error:
            raise InputFailed(f"{fetch.field}: {error}") from error
        except OSError as error:
            raise InputFailed(f"{fetch.field}: cannot be written: {error.strerror}") from error
        self._finish(fetch)

    def _create(self, fetch: _Fetch, name: str) -> BinaryIO:
        """Creates a fetch's file, in a directory of its own. Raises OSError; InputFailed after a fault or cancel."""
        with self._changed:
            if self._fault is not None:
                raise self._fault
            directory = os.path.join(self._directory, str(fetch.number))
            make_private(directory)
            fetch.path = os.path.join(directory, name)
            return open(fetch.path, "xb")

    def _wait(self) -> None:
        with self._changed:
            while self._fault is None and self._n_done < len(self._fetches):
                oldest = next(iter(self._running), None)
                seconds_left = oldest.ends_at - time.monotonic() if oldest else TIME_LIMIT
                if oldest and seconds_left <= 0:
                    self._fault = InputFailed(f"{oldest.field}: cannot be fetched within {TIME_LIMIT:g} s")
                else:
                    self._changed.wait(seconds_left)
            if self._fault is not None:
                raise self._fault

    def _work(self) -> None:
        """Fetches waiting files until none is left or one failed. Runs in each thread."""
        from corosrv.workers.worker.values.download import download

        while (fetch := self._next()) is not None:
            try:
                download(fetch.address, partial(self._create, fetch), self._agent, fetch.ends_at, self._is_over)
            except InputFailed as error:
                self._fail(InputFailed(f"{fetch.field}: {error}"))
            except Exception as error:  # whatever the HTTP library raises, `run` must not wait for this file for ever
                self._fail(InputFailed(f"{fetch.field}: cannot be fetched: {type(error).__name__}: {error}"))
            else:
                self._finish(fetch)

    def _next(self) -> _Fetch | None:
        with self._changed:
            if self._fault is not None or not self._waiting:
                return None
            fetch = self._waiting.popleft()
            fetch.ends_at = time.monotonic() + TIME_LIMIT
            self._running[fetch] = None
            self._changed.notify_all()
            return fetch

    def _finish(self, fetch: _Fetch) -> None:
        with self._changed:
            self._running.pop(fetch, None)
            self._n_done += 1
            self._changed.notify_all()

    def _fail(self, fault: InputFailed) -> None:
        with self._changed:
            self._fault = self._fault or fault
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._fault is not None
