"""A prediction's events, numbered from 1, and the reader of one client, which is told if it has missed some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corosrv.base.errors import CorosrvError
from corosrv.dialects.predictions.files import TURN, encode
from corosrv.web.kept.event_log import Cursor, EventLog, EventPiece, LogReader

LIVE = 1024  # events kept for those who read right now, where none are for those who come later
MAX_READERS = 1024  # of one prediction
PING_SECONDS = 15.0


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


class History(EventLog[Event]):
    """The last `capacity` events. With a capacity of 0 it keeps events for current readers only."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._is_replayed = capacity > 0
        self._capacity = capacity or LIVE

    def append(self, name: str, data: Any, is_last: bool = False) -> None:
        """Adds an event and wakes parked readers. The last one is always kept."""
        self.n_events += 1
        self.is_ended = is_last
        if self._is_replayed or self.n_readers or is_last:
            self._kept.append(Event(name, data, self.n_events))
            if len(self._kept) > self._capacity:
                self._kept.popleft()
        else:
            self._kept.clear()  # what is kept has no holes
        self.wake_parked()

    def cursor(self, last_number: int | None = None) -> Cursor[Event]:
        """Returns a cursor that reads the events after number `last_number`; None: from the first event on."""
        if self._is_replayed:
            return Cursor(self, min(last_number or 0, self.n_events))
        return Cursor(self, self.n_events - self.is_ended)


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


class EventReader(LogReader[Event]):
    """A client's place among a prediction's events; see LogReader."""

    def __init__(self, history: History, after_number: int | None, on_leave: Callable[[bool], None]) -> None:
        super().__init__(history, history.cursor(after_number), on_leave)

    def gap_event(self, n_skipped: int) -> Event:
        error = "SSE stream replay truncated: this reader was behind the events that are kept"
        return Event("error", {"error": error, "skipped": n_skipped})
