"""A prediction's outputs on their way: files are taken in several at once, and come out in the order they came in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Pool

from corosrv.jobs.answers import Output, OutputChunk

AT_ONCE = 8


class Chunks:
    """Resolves the outputs of one prediction and emits their values. Used by one greenlet.

    The first output that cannot be resolved is the last word: nothing is emitted behind it, and `on_error` is told.
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

    def put(self, message: Output) -> None:
        """Waits while as many are under way as may be: then the predictor waits, too."""
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
        """Every output so far was emitted, or has failed."""
        return not len(self._pool)

    def finish(self) -> None:
        """Waits until every output was emitted, has failed, or was given up."""
        self._pool.join()

    def give_up_after(self, seconds: float) -> None:
        """Gives up the outputs that are unfinished then. Never waits; the first call counts."""
        if self._giving_up is None:
            self._giving_up = gevent.spawn_later(seconds, self._pool.kill)

    def close(self) -> None:
        """Gives up unfinished outputs now. Twice is harmless."""
        if self._giving_up is not None:
            self._giving_up.kill(block=False)
        self._pool.kill()
