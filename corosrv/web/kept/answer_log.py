"""The log of an answer whose client may come back: the numbered events of its stream, whoever reads them.

A log takes events while it has room: `log_bytes` of its own, and its owner's part of what all logs may take. Without
room, logs that have ended go, the oldest first; then the answer's own oldest events, but none that its fastest follower
has yet to read: for that one the answer waits, as it does for a client without a log. Slower ones miss what is dropped,
and are told so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple, Protocol

import msgspec
from gevent.event import Event as Signal

from corosrv.base.errors import CorosrvError, EventsGone, Refused
from corosrv.web.http.sse import Encoder, Recording
from corosrv.web.kept.event_log import Cursor, EventLog, EventPiece, LogReader

LOG_COST = 4096  # bytes that a log takes besides its events, about: they bound the number of logs
EVENT_COST = 128  # bytes that an event takes besides its text, about
_LOOK_S = 30.0  # between two looks of an answer that waits for room

_END = re.compile(rb"\n\n|\r\n\r\n|\r\r")
_LINE_END = re.compile(rb"\n")
_OWN_ID = re.compile(rb"^id:[^\r\n]*(?:\r\n|\n|\r)", re.MULTILINE)

LogName = tuple[str, ...]  # what kind of name it is, and the name


class LoggedEvent(NamedTuple):
    """An event as it is sent, or a comment between two; `number` is that of the last event up to this one."""

    wire: bytes
    number: int

    @property
    def pieces(self) -> tuple[bytes, ...]:
        return (self.wire,)


def split_events(piece: bytes, is_lines: bool = False) -> Iterator[bytes]:
    """Yields the events of a piece of a stream, which ends behind one; or its lines."""
    begin = 0
    for end in (_LINE_END if is_lines else _END).finditer(piece):
        yield piece[begin : end.end()]
        begin = end.end()
    if begin < len(piece):
        yield piece[begin:]


def _is_comment(event: bytes) -> bool:
    return not event.strip() or (event[:1] == b":" and all(line[:1] == b":" for line in event.splitlines() if line))


def error_event(error: CorosrvError, is_lines: bool) -> bytes:
    """Makes the event of an error, which clients of all dialects know as one."""
    if is_lines:
        return msgspec.json.encode({"error": str(error)}) + b"\n"
    members = {"type": "server_error", "message": str(error), "code": error.code}
    return b"event: error\ndata: " + msgspec.json.encode({"type": "error", "error": members}) + b"\n\n"


class LogOwner(Protocol):
    """Bounds and times the logs of one caller; see corosrv.web.kept.answer_logs."""

    def now(self) -> float: ...
    def grow(self, n_bytes: int) -> None: ...
    def is_over(self, n_bytes: int) -> bool: ...
    def note_end(self, answer: AnswerLog) -> None: ...
    def note_left(self, now: float) -> None: ...
    def drop(self, answer: AnswerLog) -> None: ...


class AnswerLog(EventLog[LoggedEvent]):
    """The events of one answer. Made by AnswerLogs; belongs to the hub's thread."""

    def __init__(self, owner: LogOwner, digest: bytes, cancel: Callable[[], None], *, is_lines: bool = False) -> None:
        """`digest`: of what was asked; `cancel`: ends the answer; `is_lines`: it is lines of JSON, and no events."""
        super().__init__()
        self.digest = digest
        self.is_lines = is_lines
        self.head: tuple[int, tuple[tuple[str, str], ...]] = (200, ())  # status and headers
        self.needs_client = True  # without one, the answer is cancelled in a while
        self.recording: Recording | None = None  # gets a copy
        self.n_bytes = LOG_COST
        self.began_at = owner.now()
        self.left_at: float | None = self.began_at  # when its last client left
        self.ended_at = 0.0
        self.names: set[LogName] = set()
        self._owner = owner
        self._cancel = cancel
        self._cursors: set[Cursor[LoggedEvent]] = set()
        self._n_numbered = 0
        self._number_lost = 0  # of the last event that is kept no longer
        self._n_bytes_lost = 0
        self._room: Signal | None = None  # while the answer waits

    # For whoever writes.

    def write(self, piece: bytes) -> bytes:
        """Adds the events of a piece; returns it with their numbers. Comments have none. Never waits.

        Lines of JSON have no place for a number, and are counted.
        """
        events = list(map(self._numbered, split_events(piece, self.is_lines)))
        self.make_room()
        self.wake_parked()
        return b"".join(events)

    def _numbered(self, event: bytes) -> bytes:
        if not _is_comment(event):
            self._n_numbered += 1
            if not self.is_lines:
                # An upstream's own number is not of this log.
                own = _OWN_ID.sub(b"", event) if b"id:" in event else event
                event = b"id: %d\n" % self._n_numbered + own
        self._add(event)
        return event

    def write_error(self, error: CorosrvError) -> None:
        """Adds an event that tells of an error which no dialect has put into words. Never waits."""
        self.write(error_event(error, self.is_lines))

    def _add(self, wire: bytes) -> None:
        self._kept.append(LoggedEvent(wire, self._n_numbered))
        self.n_events += 1
        self._count(len(wire) + EVENT_COST)

    def _count(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        self._owner.grow(n_bytes)

    def make_room(self) -> None:
        """Drops the oldest events while the log is over its bounds, but none that its fastest follower needs."""
        read = max((cursor.position for cursor in self._cursors), default=self.n_events)
        while self._is_over and self.n_lost < read:
            dropped = self._kept.popleft()
            self._number_lost = dropped.number
            self._n_bytes_lost += len(dropped.wire)
            self._count(-len(dropped.wire) - EVENT_COST)

    @property
    def _is_over(self) -> bool:
        return self._owner.is_over(self.n_bytes)

    def wait_for_room(self) -> None:
        """Waits while the log is full of what its fastest follower has yet to read: until that one reads or leaves."""
        while self._is_over and self._cursors:
            self._room = Signal()
            self._room.wait(_LOOK_S)
            self.make_room()
        self._room = None

    def end(self) -> None:
        """Ends the log; nothing follows. Never waits."""
        if not self.is_ended:
            self.is_ended = True
            self.wake_parked()
            self._owner.note_end(self)

    # For whoever reads.

    def now(self) -> float:
        """Returns the time by the clock of `began_at` and `ended_at`."""
        return self._owner.now()

    @property
    def n_stream_bytes(self) -> int:
        """The bytes of the stream so far, those that are kept no longer included."""
        return self._n_bytes_lost + sum(len(event.wire) for event in self._kept)

    def advance(self) -> None:
        if self._room is not None:
            self._room.set()

    def enter(self, cursor: Cursor[LoggedEvent]) -> None:
        super().enter(cursor)
        self._cursors.add(cursor)
        self.left_at = None

    def leave(self, cursor: Cursor[LoggedEvent]) -> None:
        super().leave(cursor)
        self._cursors.discard(cursor)
        if not self._cursors:
            self.left_at = self._owner.now()
            self._owner.note_left(self.left_at)
        self.advance()

    def cancel(self) -> None:
        """Ends the answer, unless it has ended; its last event says so. Never waits."""
        if not self.is_ended:
            self._cancel()

    def wait_for_end(self, seconds: float) -> bool:
        """Waits until the answer has ended, at most so long; returns whether it has."""
        deadline = self._owner.now() + seconds
        while not self.is_ended and (left := deadline - self._owner.now()) > 0:
            news = Signal()
            self.park(news.set)
            news.wait(left)
            self.unpark(news.set)
        return self.is_ended

    def drop(self) -> None:
        """Takes the log away from all who could come back to it."""
        self._owner.drop(self)

    def follow(self, after: int, param: str) -> StreamReader:
        """Reads the events after number `after`, and those that are yet to come. `param`: where the number stood.

        Raises Refused for a number that no event has had yet, and EventsGone.
        """
        if after > self._n_numbered:
            raise Refused(
                f"{param}: the stream has {self._n_numbered} events so far, and none of number {after}", param
            )
        if after < self._number_lost:
            raise self.events_gone(param)
        n_seen = sum(1 for _ in takewhile(lambda event: event.number <= after, self._kept)) if after else 0
        return StreamReader(self, Cursor(self, self.n_lost + n_seen))

    def events_gone(self, param: str | None = None) -> EventsGone:
        """Makes the error for events that are kept no longer."""
        return EventsGone(f"events up to number {self._number_lost}", self._number_lost + 1, param)

    def follow_bytes(self, offset: int, param: str) -> StreamReader:
        """Reads what follows the first `offset` bytes of the stream; see `follow`."""
        if offset < self._n_bytes_lost:
            raise EventsGone(f"the first {self._n_bytes_lost} bytes", self._n_bytes_lost, param)
        position, end = self.n_lost, self._n_bytes_lost
        for event in self._kept:
            if end >= offset:
                break
            position, end = position + 1, end + len(event.wire)
        if end < offset:
            raise Refused(f"{param}: the stream has {end} bytes so far, and none behind {offset}", param)
        rest = self.event_after(position - 1).wire[-(end - offset) :] if end > offset else b""
        return StreamReader(self, Cursor(self, position, filter(None, (rest,))))


class StreamReader(LogReader[LoggedEvent]):
    """A client's place in the log of an answer; see LogReader."""

    def __init__(self, answer: AnswerLog, cursor: Cursor[LoggedEvent]) -> None:
        super().__init__(answer, cursor, lambda has_left: None)
        self.answer = answer

    def __del__(self) -> None:
        self._cursor.close()  # as nobody else does where the server broke down around it

    def gap_event(self, n_skipped: int) -> EventPiece:
        return EventPiece(error_event(self.answer.events_gone(), self.answer.is_lines))


class FollowedEvents(Encoder[LoggedEvent | EventPiece]):
    """Sends the events of a log as they are. That the answer failed is an event like others."""

    def __init__(self, answer: AnswerLog) -> None:
        self._answer = answer

    def encode(self, events: list[LoggedEvent | EventPiece]) -> bytes:
        return b"".join([event.wire for event in events])

    def encode_error(self, error: CorosrvError) -> bytes:
        return error_event(error, self._answer.is_lines)
