"""One client that reads a prediction's events: waits for them, and gets an error event when it has missed some."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import CorosrvError, Misuse
from corosrv.contracts.jobs import Reader, Sink
from corosrv.contracts.jobs.buffered import ItemPump
from corosrv.contracts.jobs.reader import take_first
from corosrv.dialects.predictions.history import Cursor, Event, EventPiece, Gap, History

MAX_READERS = 1024  # of one prediction
PING_SECONDS = 15.0

Item = Event | EventPiece


class EventEncoder:
    """Makes a stream of a prediction's events; see corosrv.web.http.sse.Encoder."""

    failure: CorosrvError | None = None  # that a prediction failed is an event like others

    def encode(self, events: list[Item]) -> bytes:
        return b"".join([event.wire for event in events])

    def encode_error(self, error: CorosrvError) -> bytes:
        return Event("error", {"error": str(error), "skipped": 0}).wire

    def close(self) -> None:
        """Does nothing."""


class EventReader(Reader[Item]):
    """A client's place among a prediction's events, read by a corosrv.web.http.sse.EventStream.

    Belongs to the hub's thread.

    A reader that falls behind the kept history gets one `error` event and then the stream ends. `on_leave` is called
    once, when the reader is closed, with whether it left by itself: one that fell behind did not.
    """

    def __init__(self, history: History, after_number: int | None, on_leave: Callable[[bool], None]) -> None:
        self._history = history
        self._cursor: Cursor = history.cursor(after_number)
        self._on_leave = on_leave
        self.is_lost = False  # it fell behind the kept history
        self._is_closed = False
        self._pump: ItemPump[Item] | None = None  # of whoever waits

    @property
    def is_finished(self) -> bool:
        """True if no more events will come."""
        return self._is_closed or self.is_lost or self._cursor.is_at_end

    def take(self, timeout: float | None = None) -> list[Item]:
        """Returns unread events, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[Item], timeout: float | None = None) -> None:
        """Hands unread events to `sink` whenever there are some, until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without events.
        """
        if self._pump is not None:
            raise Misuse("another greenlet reads these events already; give each greenlet a reader of its own")
        self._pump = pump = ItemPump(self, sink)
        try:
            pump.run(timeout)
        finally:
            self._pump = None
            self._history.unpark(pump.schedule)

    def on_news(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, at the next event. Returns False, and calls nothing, if there is one or the end."""
        if self.is_finished or self._cursor.has_unread:
            return False
        self._history.park(listener)
        return True

    def take_nowait(self) -> list[Item]:
        """Returns some unread events, perhaps none. Never waits."""
        if self._is_closed or self.is_lost:
            return []
        try:
            return self._cursor.take()
        except Gap as gap:
            self.is_lost = True
            error = "SSE stream replay truncated: this reader was behind the events that are kept"
            return [Event("error", {"error": error, "skipped": gap.n_skipped})]

    def cancel(self) -> None:
        """Closes the reader: the client is gone. Never waits."""
        self.close()

    def close(self) -> None:
        """Stops reading and calls `on_leave`. Later calls do nothing."""
        if self._is_closed:
            return
        has_left = not self.is_finished
        self._is_closed = True
        self._cursor.close()
        if self._pump is not None:
            self._pump.schedule()
        self._on_leave(has_left)
