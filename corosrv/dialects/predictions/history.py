"""A prediction's events: numbered from 1, the latest kept, read by independent cursors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from corosrv.dialects.predictions.files import TURN, encode

LIVE = 1024  # events kept for those who read right now, where none are for those who come later
PIECE = 65_536  # bytes, some, that a cursor takes at once


class Event:
    """One thing that happened, as a server-sent event; encoded once, whoever reads it."""

    __slots__ = ("_pieces", "data", "name", "number")

    def __init__(self, name: str, data: Any, number: int | None = None) -> None:
        self.name = name
        self.data = data
        self.number = number  # None: not of the history, so that nobody goes on after it
        self._pieces: tuple[bytes, ...] = ()

    @property
    def wire(self) -> bytes:
        """The event as it is sent."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The same in pieces, of which an event of ordinary size has one. A large one is never copied as a whole."""
        if not self._pieces:
            number = b"" if self.number is None else b"id: %d\n" % self.number
            head = b"%bevent: %b\ndata: " % (number, self.name.encode())
            texts = (head, *encode(self.data), b"\n\n")
            is_small = sum(map(len, texts)) <= TURN
            self._pieces = (b"".join(texts),) if is_small else tuple(filter(None, texts))
        return self._pieces


class EventPiece(NamedTuple):
    """A piece of a large event, as it is sent."""

    wire: bytes


class History:
    """The last `capacity` events. Never waits; used from the hub's thread.

    With a capacity of 0 it keeps events for current readers only.
    """

    def __init__(self, capacity: int) -> None:
        self._is_replayed = capacity > 0
        self._kept: deque[Event] = deque(maxlen=capacity or LIVE)
        self._parked: dict[Callable[[], None], None] = {}
        self.n_events = 0
        self.n_readers = 0
        self.is_ended = False

    @property
    def n_lost(self) -> int:
        """Events, from the first on, that are kept no longer."""
        return self.n_events - len(self._kept)

    def append(self, name: str, data: Any, is_last: bool = False) -> None:
        """Adds an event and wakes parked readers. The last one is always kept."""
        self.n_events += 1
        self.is_ended = is_last
        if self._is_replayed or self.n_readers or is_last:
            self._kept.append(Event(name, data, self.n_events))
        else:
            self._kept.clear()  # what is kept has no holes
        parked, self._parked = self._parked, {}
        for wake in parked:
            wake()

    def park(self, wake: Callable[[], None]) -> None:
        """Calls a function once, at the next event."""
        self._parked[wake] = None

    def unpark(self, wake: Callable[[], None]) -> None:
        """Undoes `park`."""
        self._parked.pop(wake, None)

    def cursor(self, last_number: int | None = None) -> Cursor:
        """Returns a cursor that reads the events after number `last_number`; None: from the first event on."""
        self.n_readers += 1
        if self._is_replayed:
            return Cursor(self, min(last_number or 0, self.n_events))
        return Cursor(self, self.n_events - self.is_ended)

    def event_after(self, number: int) -> Event:
        """Returns the event after `number`, which must still be kept."""
        return self._kept[number - self.n_lost]


class Gap(Exception):
    """Events that a cursor had not read are kept no longer."""

    def __init__(self, n_skipped: int) -> None:
        super().__init__(n_skipped)
        self.n_skipped = n_skipped


class Cursor:
    """One reader's place in a history. Close it, or nobody learns that the reader has left.

    An event that was begun is read to its end, also if it is kept no longer.
    """

    def __init__(self, history: History, position: int) -> None:
        self._history = history
        self._position = position  # the number of the last event that was taken, or whose first piece was
        self._rest: deque[bytes] = deque()  # of that event
        self._is_open = True

    @property
    def is_at_end(self) -> bool:
        """The last event of all was taken."""
        return self._history.is_ended and self._position == self._history.n_events and not self._rest

    @property
    def has_unread(self) -> bool:
        """An event, or the rest of one, was not taken yet."""
        return bool(self._rest) or self._position < self._history.n_events

    def take(self) -> list[Event | EventPiece]:
        """Returns unread events, some 64 KiB at most, or the next piece of a large one; an empty list if there is none.

        Never waits. Raises Gap if the next one is kept no longer.
        """
        if self._rest:
            return [EventPiece(self._rest.popleft())]
        history = self._history
        if self._position < history.n_lost:
            raise Gap(history.n_lost - self._position)
        events: list[Event | EventPiece] = []
        n_bytes = 0
        while self._position < history.n_events and n_bytes < PIECE and not self._rest:
            event = history.event_after(self._position)
            piece, *rest = event.pieces
            events.append(EventPiece(piece) if rest else event)
            self._rest.extend(rest)
            n_bytes += len(piece)
            self._position += 1
        return events

    def close(self) -> None:
        """Ends the reader. Later calls do nothing."""
        if self._is_open:
            self._is_open = False
            self._history.n_readers -= 1
