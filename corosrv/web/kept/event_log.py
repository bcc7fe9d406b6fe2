"""Numbered events, the latest kept, read by independent cursors; and the reader of a client that follows them."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from corosrv.base.errors import Misuse
from corosrv.contracts.jobs import Reader, Sink
from corosrv.contracts.jobs.buffered import ItemPump
from corosrv.contracts.jobs.reader import take_first

PIECE = 65_536  # bytes, some, that a cursor takes at once


class HasPieces(Protocol):
    """An event as it is sent, in pieces; one of ordinary size has one."""

    @property
    def pieces(self) -> tuple[bytes, ...]: ...
    @property
    def wire(self) -> bytes: ...


class EventPiece(NamedTuple):
    """A piece of a large event, as it is sent."""

    wire: bytes


Logged = TypeVar("Logged", bound=HasPieces)


class Gap(Exception):
    """Events that a cursor had not read are kept no longer."""

    def __init__(self, n_skipped: int) -> None:
        super().__init__(n_skipped)
        self.n_skipped = n_skipped


class EventLog(Generic[Logged]):
    """The events of one answer, of which some at the front may be lost. Never waits; used from the hub's thread."""

    def __init__(self) -> None:
        self._kept: deque[Logged] = deque()
        self._parked: dict[Callable[[], None], None] = {}
        self.n_events = 0
        self.n_readers = 0
        self.is_ended = False

    @property
    def n_lost(self) -> int:
        """Events, from the first on, that are kept no longer."""
        return self.n_events - len(self._kept)

    def park(self, wake: Callable[[], None]) -> None:
        """Calls a function once, at the next event."""
        self._parked[wake] = None

    def unpark(self, wake: Callable[[], None]) -> None:
        self._parked.pop(wake, None)

    def wake_parked(self) -> None:
        parked, self._parked = self._parked, {}
        for wake in parked:
            wake()

    def event_after(self, position: int) -> Logged:
        """Returns the event that has so many before it, which must still be kept."""
        return self._kept[position - self.n_lost]

    def enter(self, cursor: Cursor[Logged]) -> None:
        """Counts a cursor that reads from now on."""
        self.n_readers += 1

    def advance(self) -> None:
        """Learns that a cursor has read on."""

    def leave(self, cursor: Cursor[Logged]) -> None:
        """Counts a cursor as closed."""
        self.n_readers -= 1


class Cursor(Generic[Logged]):
    """One reader's place in a log. Close it, or nobody learns that the reader has left.

    An event that was begun is read to its end, also if it is kept no longer.
    """

    def __init__(self, log: EventLog[Logged], position: int, unread: Iterable[bytes] = ()) -> None:
        """`position`: how many events were taken; `unread`: what is left of the last of them."""
        self._log = log
        self.position = position
        self._rest: deque[bytes] = deque(unread)
        self._is_open = True
        log.enter(self)

    @property
    def is_at_end(self) -> bool:
        """The last event of all was taken."""
        return self._log.is_ended and self.position == self._log.n_events and not self._rest

    @property
    def has_unread(self) -> bool:
        """An event, or the rest of one, was not taken yet."""
        return bool(self._rest) or self.position < self._log.n_events

    def take(self) -> list[Logged | EventPiece]:
        """Returns unread events, some 64 KiB at most, or the next piece of a large one; an empty list if there is none.

        Never waits. Raises Gap if the next one is kept no longer.
        """
        if self._rest:
            return [EventPiece(self._rest.popleft())]
        log = self._log
        if self.position < log.n_lost:
            raise Gap(log.n_lost - self.position)
        events: list[Logged | EventPiece] = []
        n_bytes = 0
        while self.position < log.n_events and n_bytes < PIECE and not self._rest:
            event = log.event_after(self.position)
            piece, *rest = event.pieces
            events.append(EventPiece(piece) if rest else event)
            self._rest.extend(rest)
            n_bytes += len(piece)
            self.position += 1
        log.advance()
        return events

    def close(self) -> None:
        """Ends the reader. Later calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._log.leave(self)


class LogReader(Reader[Logged | EventPiece]):
    """A client's place in a log, read by a corosrv.web.http.sse.EventStream. Belongs to the hub's thread.

    A reader that falls behind the kept events gets one event more, which says so, and then the stream ends. `on_leave`
    is called once, when the reader is closed, with whether it left by itself: one that fell behind did not.
    """

    def __init__(self, log: EventLog[Logged], cursor: Cursor[Logged], on_leave: Callable[[bool], None]) -> None:
        self._log = log
        self._cursor = cursor
        self._on_leave = on_leave
        self.is_lost = False  # it fell behind the kept events
        self._is_closed = False
        self._pump: ItemPump[Logged | EventPiece] | None = None  # of whoever waits

    @abstractmethod
    def gap_event(self, n_skipped: int) -> Logged | EventPiece:
        """Makes the event that tells of events which are kept no longer."""

    @property
    def is_finished(self) -> bool:
        """True if no more events will come."""
        return self._is_closed or self.is_lost or self._cursor.is_at_end

    def take(self, timeout: float | None = None) -> list[Logged | EventPiece]:
        """Returns unread events, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[Logged | EventPiece], timeout: float | None = None) -> None:
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
            self._log.unpark(pump.schedule)

    def on_news(self, listener: Callable[[], None]) -> bool:
        """Calls `listener` once, at the next event. Returns False, and calls nothing, if there is one or the end."""
        if self.is_finished or self._cursor.has_unread:
            return False
        self._log.park(listener)
        return True

    def take_nowait(self) -> list[Logged | EventPiece]:
        """Returns some unread events, perhaps none. Never waits."""
        if self._is_closed or self.is_lost:
            return []
        try:
            return self._cursor.take()
        except Gap as gap:
            self.is_lost = True
            return [self.gap_event(gap.n_skipped)]

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
