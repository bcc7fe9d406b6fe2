"""Buffers what one sender gives one taker: the items of a call or a prediction, their bytes bounded.

`ItemPump` hands the items to whoever sends them on, without waking a greenlet for each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gevent import get_hub
from gevent.event import Event

from corosrv.base.errors import Misuse, ReadTimeout
from corosrv.contracts.jobs.reader import Reader, Sink

Item = TypeVar("Item")
Pumped_co = TypeVar("Pumped_co", covariant=True)

MAX_UNREAD = 1 << 20  # bytes; an item that goes beyond is kept, and its sender waits with the next


class ItemSource(Protocol[Pumped_co]):
    """The reader whose items a pump hands over."""

    @property
    def is_finished(self) -> bool: ...

    def on_news(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, at the next item or at the end. Returns False, and calls nothing, if that is there."""

    def take_nowait(self) -> Sequence[Pumped_co]: ...


class ItemPump(Generic[Item]):
    """Hands all unread items to a sink, once in a turn of the hub, while the greenlet that made it sleeps.

    Belongs to the hub's thread.
    """

    __slots__ = ("_error", "_is_over", "_last_at", "_sink", "_source")

    def __init__(self, source: ItemSource[Item], sink: Sink[Item]) -> None:
        self._source = source
        self._sink: Sink[Item] | None = sink
        self._is_over = Event()
        self._error: BaseException | None = None  # of the sink
        self._last_at = time.monotonic()  # when items came last

    def run(self, timeout: float | None) -> None:
        """Returns when the sink has returned False, or after the last item. Waits.

        Raises what the sink raises, and ReadTimeout after `timeout` seconds without items.
        """
        self.schedule()
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

    def schedule(self) -> None:
        """Hands over what there is in the next turn of the hub. Never waits."""
        # In the next turn, also when items are there: what comes until then is handed over together, and a stream with
        # much to say gives way to the others.
        get_hub().loop.run_callback(self._hand_over)

    def _hand_over(self) -> None:
        if (sink := self._sink) is None:
            return
        try:
            if items := self._source.take_nowait():
                self._last_at = time.monotonic()
                wants_more = sink(list(items))
            else:
                wants_more = True
            if not wants_more or self._source.is_finished:
                self._is_over.set()
            elif not self._source.on_news(self.schedule):
                self.schedule()
        except BaseException as error:  # belongs to the greenlet that waits, not to the hub
            self._error = error
            self._is_over.set()


class BufferedReader(Reader[Item]):
    """A buffer of items between one sender and one taker. Belongs to the hub's thread.

    Nothing but memory is held while nobody takes.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        """`cancel`: asks the sender to end, by calling `add_last`, unless it has ended."""
        self._cancel: Callable[[], None] | None = cancel
        self._items: list[Item] = []
        self._n_bytes = 0  # of those
        self._has_ended = False  # the last item is there
        self._is_closed = False
        self._on_news: Callable[[], None] | None = None  # while a greenlet takes, or somebody wants to be told
        self._room: Event | None = None  # while the sender waits

    @property
    def is_finished(self) -> bool:
        """True once no item will be taken any more: the last one was, or the reader is closed."""
        return (self._has_ended or self._is_closed) and not self._items

    def take(self, timeout: float | None = None) -> list[Item]:
        """Returns all unread items, at least one; an empty list after the last and after close(). Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """
        if not self._items and not self.is_finished:
            self._wait(timeout)
        return self.take_nowait()

    def _wait(self, timeout: float | None) -> None:
        news = Event()
        self._listen(news.set)
        try:
            if not news.wait(timeout):
                raise ReadTimeout(f"nothing to read for {timeout:g} s")
        finally:
            self._on_news = None

    def on_news(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, at the next item or at the end. Returns False, and calls nothing, if that is there."""
        if self._items or self._has_ended or self._is_closed:
            return False
        if self._on_news is not None:
            self._listen(listener)  # which says what is wrong
        self._on_news = listener
        return True

    def _listen(self, listener: Callable[[], None]) -> None:
        if self._on_news is not None:
            raise Misuse("another greenlet takes from this reader already; give each greenlet a reader of its own")
        self._on_news = listener

    def pump(self, sink: Sink[Item], timeout: float | None = None) -> None:
        """Hands all unread items to `sink` until it returns False or the last one was taken.

        Waits; meanwhile `sink` is called in the hub, and must not wait itself. Raises what it raises, and ReadTimeout
        after `timeout` seconds without items.
        """
        try:
            ItemPump(self, sink).run(timeout)
        finally:
            self._on_news = None

    def take_nowait(self) -> list[Item]:
        """Returns all unread items, perhaps none. Never waits."""
        items, self._items = self._items, []
        self._n_bytes = 0
        if self._room is not None:
            self._room.set()
        return items

    def cancel(self) -> None:
        """Asks the sender to end. Never waits. Twice is harmless."""
        if self._cancel is not None:
            self._cancel()

    def close(self) -> None:
        """Cancels, and drops unread and later items. Twice is harmless."""
        self._is_closed = True
        self.cancel()
        self.take_nowait()
        self._wake()

    # What follows is for the sender.

    def add_item(self, item: Item, n_bytes: int) -> None:
        """Adds an item; none may follow the last. Never waits."""
        assert not self._has_ended, f"{item} comes after the last item"
        if not self._is_closed:
            self._items.append(item)
            self._n_bytes += n_bytes
            if (on_news := self._on_news) is not None:
                self._on_news = None
                on_news()

    def add_last(self, item: Item, n_bytes: int = 0) -> None:
        """Adds the last item. Never waits."""
        self.add_item(item, n_bytes)
        self.finish()

    def finish(self) -> None:
        """Ends the reader after the items that it has. Never waits."""
        self._has_ended = True
        self._cancel = None
        if self._on_news is not None:
            self._wake()
        if self._room is not None:
            self._room.set()

    def _wake(self) -> None:
        on_news, self._on_news = self._on_news, None
        if on_news is not None:
            on_news()

    def wait_for_room(self) -> None:
        """Waits while more than MAX_UNREAD bytes are unread and the last item has not come."""
        if self._n_bytes > MAX_UNREAD and not self._has_ended:
            self._room = Event()
            try:
                self._room.wait()
            finally:
                self._room = None
