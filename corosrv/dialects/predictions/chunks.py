"""A prediction's outputs: resolves several files at once and emits the values in the order in which they were added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Pool

from corosrv.contracts.jobs.answers import Output, OutputChunk

AT_ONCE = 8


class Chunks:
    """Resolves the outputs of one prediction and emits their values. Used by one greenlet.

    At the first output that cannot be resolved it calls `on_error`, and emits nothing after it.
    """

    def __init__(
        self, resolve: Callable[[Output], Any], emit: Callable[[Any], None], on_error: Callable[[Exception], None]
    ) -> None:
        self._resolve = resolve
        self._emit = emit
        self._on_error = on_error
        self._is_broken = False
        self._pool = Pool(AT_ONCE)
        self._last: gevent.Greenlet | None = None
        self._giving_up: gevent.Greenlet | None = None

    def add(self, message: Output) -> None:
        """Adds an output. Waits while AT_ONCE outputs are being resolved, which makes the predictor wait, too."""
        is_first = self._last is None or self._last.ready()
        if is_first and isinstance(message, OutputChunk) and not message.files:
            if not self._is_broken:
                self._emit(message.output)
        else:
            self._last = self._pool.spawn(self._emit_after, self._last, message)

    def _emit_after(self, previous: gevent.Greenlet | None, message: Output) -> None:
        try:
            value, error = self._resolve(message), None
        except Exception as raised:  # a greenlet that raises would only print it
            value, error = None, raised
        if previous is not None:
            previous.join()
        if self._is_broken:
            return
        if error is None:
            self._emit(value)
        else:
            self._is_broken = True
            self._on_error(error)

    @property
    def is_finished(self) -> bool:
        """True if every output so far was emitted or has failed."""
        return not len(self._pool)

    def finish(self) -> None:
        """Waits until every output was emitted, has failed, or was given up."""
        self._pool.join()

    def give_up_after(self, seconds: float) -> None:
        """Gives up outputs that are unfinished after this time. Never waits; only the first call counts."""
        if self._giving_up is None:
            self._giving_up = gevent.spawn_later(seconds, self._pool.kill)

    def close(self) -> None:
        """Gives up unfinished outputs now. Later calls do nothing."""
        if self._giving_up is not None:
            self._giving_up.kill(block=False)
        self._pool.kill()
