"""Hands the items of a call to whoever sends them on, without waking a greenlet for each."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gevent import get_hub
from gevent.event import Event

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs.infer import InferItem
from corosrv.contracts.jobs.reader import Sink


class ItemSource(Protocol):
    """Stands for the reader whose items are handed over."""

    @property
    def is_finished(self) -> bool: ...

    def on_news(self, listener: Callable[[], None]) -> bool: ...

    def take_nowait(self) -> list[InferItem]: ...


class ItemPump:
    """Hands all unread items to a sink, once in a turn of the hub, while the greenlet that made it sleeps.

    Belongs to the hub's thread.
    """

    __slots__ = ("_error", "_is_over", "_last_at", "_sink", "_source")

    def __init__(self, source: ItemSource, sink: Sink[InferItem]) -> None:
        self._source = source
        self._sink: Sink[InferItem] | None = sink
        self._is_over = Event()
        self._error: BaseException | None = None  # of the sink
        self._last_at = time.monotonic()  # when items came last

    def run(self, timeout: float | None) -> None:
        """Returns when the sink has returned False, or after the last item. Waits.

        Raises what the sink raises, and ReadTimeout after `timeout` seconds without items.
        """
        self._schedule()
        remaining = timeout
        try:
            while not self._is_over.wait(remaining):
                assert timeout is not None
                remaining = self._last_at + timeout - time.monotonic()
                if remaining <= 0:
                    raise ReadTimeout(f"nothing to read for {timeout:g} s")
        finally:
            self._sink = None
        if self._error is not None:
            raise self._error

    def _schedule(self) -> None:
        # In the next turn, also when items are there: what comes until then is handed over together, and a stream with
        # much to say gives way to the others.
        get_hub().loop.run_callback(self._hand_over)

    def _hand_over(self) -> None:
        if (sink := self._sink) is None:
            return
        try:
            if items := self._source.take_nowait():
                self._last_at = time.monotonic()
                wants_more = sink(items)
            else:
                wants_more = True
            if not wants_more or self._source.is_finished:
                self._is_over.set()
            elif not self._source.on_news(self._schedule):
                self._schedule()
        except BaseException as error:  # belongs to the greenlet that waits, not to the hub
            self._error = error
            self._is_over.set()
