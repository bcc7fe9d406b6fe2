"""Receives what one call sends: buffers its answers, and makes its handler wait while nobody takes them.

Hands the items of a call to whoever sends them on, without waking a greenlet for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gevent import get_hub
from gevent.event import Event

from corosrv.base.errors import CorosrvError, Misuse, ReadTimeout
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferItem, InferOutputs, InferReader
from corosrv.contracts.jobs.reader import Sink
from corosrv.workers.dispatch.answers import CallAnswer


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


MAX_UNREAD = 1 << 20  # bytes; an answer that goes beyond is kept, and the handler waits with the next


class HandlerReader(InferReader):
    """Yields a call's answers; the InferEnd comes once and is the last, whatever happens.

    Belongs to the hub's thread; one greenlet takes. Nothing but memory is held while nobody takes.
    """

    __slots__ = (
        "_cancel",
        "_card",
        "_has_ended",
        "_is_closed",
        "_is_replayed",
        "_items",
        "_n_bytes",
        "_on_news",
        "_room",
    )

    def __init__(self, card: HandlerCard, cancel: Callable[[], None], is_replayed: bool = False) -> None:
        """`cancel`: ends the call, by calling `end`, unless it has ended."""
        self._card = card
        self._is_replayed = is_replayed
        self._cancel: Callable[[], None] | None = cancel
        self._items: list[InferItem] = []
        self._n_bytes = 0  # of those
        self._has_ended = False
        self._is_closed = False
        self._on_news: Callable[[], None] | None = None  # while a greenlet takes, or somebody wants to be told
        self._room: Event | None = None  # while the handler waits

    @classmethod
    def of_answer(cls, answer: CallAnswer) -> HandlerReader:
        """Makes the reader of a call that need not run: its answer is known."""
        reader = cls(answer.card, lambda: None, is_replayed=True)
        for outputs in answer.outputs:
            reader.add(outputs, 0)
        reader.end(None if answer.end.error is None else answer.end.error.fresh())
        return reader

    @property
    def card(self) -> HandlerCard:
        return self._card

    @property
    def is_replayed(self) -> bool:
        return self._is_replayed

    @property
    def is_finished(self) -> bool:
        return self._has_ended and not self._items

    def take(self, timeout: float | None = None) -> list[InferItem]:
        """Returns all unread items, at least one; an empty list after the last and after close(). Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """
        if not self._items and not self._has_ended:
            self._wait(timeout)
        return self._empty()

    def _wait(self, timeout: float | None) -> None:
        news = Event()
        self._listen(news.set)
        try:
            if not news.wait(timeout):
                raise ReadTimeout(f"nothing to read for {timeout:g} s")
        finally:
            self._on_news = None

    def on_news(self, listener: Callable[[], None]) -> bool:
        if self._items or self._has_ended:
            return False
        self._listen(listener)
        return True

    def _listen(self, listener: Callable[[], None]) -> None:
        if self._on_news is not None:
            raise Misuse("another greenlet takes from this reader already; give each greenlet a reader of its own")
        self._on_news = listener

    def pump(self, sink: Sink[InferItem], timeout: float | None = None) -> None:
        """Hands all unread items to `sink` until it returns False or the last one was taken.

        Waits; meanwhile `sink` is called in the hub, and must not wait itself. Raises what it raises, and ReadTimeout
        after `timeout` seconds without items.
        """
        try:
            ItemPump(self, sink).run(timeout)
        finally:
            self._on_news = None

    def take_nowait(self) -> list[InferItem]:
        """Returns all unread items, perhaps none. Never waits."""
        return self._empty()

    def cancel(self) -> None:
        """Ends the call at once with CallCancelled; a worker that has it is told. Never waits. Twice is harmless."""
        if self._cancel is not None:
            self._cancel()

    def close(self) -> None:
        self._is_closed = True
        self.cancel()
        self._empty()

    def _empty(self) -> list[InferItem]:
        items, self._items = self._items, []
        self._n_bytes = 0
        if self._room is not None:
            self._room.set()
        return items

    # What follows is for the dispatcher.

    def add(self, outputs: InferOutputs, n_bytes: int) -> None:
        """Adds an answer; none may follow the end. Never waits."""
        assert not self._has_ended, "an answer comes after the call's end"
        if not self._is_closed:
            self._items.append(outputs)
            self._n_bytes += n_bytes
            self._wake()

    def end(self, error: CorosrvError | None) -> None:
        """Adds the end. Never waits."""
        assert not self._has_ended, "a call ends a second time"
        self._has_ended = True
        self._cancel = None
        if not self._is_closed:
            self._items.append(InferEnd(error))
        self._wake()
        if self._room is not None:
            self._room.set()

    def _wake(self) -> None:
        on_news, self._on_news = self._on_news, None
        if on_news is not None:
            on_news()

    def wait_for_room(self) -> None:
        """Waits while more than MAX_UNREAD bytes are unread and the call has not ended."""
        if self._n_bytes > MAX_UNREAD and not self._has_ended:
            self._room = Event()
            try:
                self._room.wait()
            finally:
                self._room = None
