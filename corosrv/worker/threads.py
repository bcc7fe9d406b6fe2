"""Threads that a prediction starts belong to it, as its tasks do: what they print and record is the prediction's."""

from __future__ import annotations

import functools
import threading
from typing import Any

from corosrv.worker.printed import place
from corosrv.worker.scope import scope


def belong_to_their_starter() -> None:
    """From now on, all threads."""
    start = threading.Thread.start

    @functools.wraps(start)
    def start_as_part(self: threading.Thread) -> None:
        if (printed := place.get(None)) is not None:
            _run_within(self, scope.get(), printed)
        start(self)

    threading.Thread.start = start_as_part  # type: ignore[method-assign]


def _run_within(thread: threading.Thread, its_scope: Any, printed: Any) -> None:
    run = thread.run

    def run_as_part() -> None:
        del thread.run  # or the thread would hold itself for ever
        scope.set(its_scope)
        place.set(printed)
        run()

    thread.run = run_as_part  # type: ignore[method-assign]
