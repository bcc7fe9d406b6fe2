"""Carries the messages of many lanes over one connection, where no descriptors can be sent. Touches no socket.

Both sides speak in pieces: a lane, a kind, a length, and at most MAX_PIECE bytes. The bytes of a lane are its messages,
each behind a head that says what went beside it: memory files, whose contents follow, and further lanes, which are open
from then on. Lanes take turns, the control lane (0) goes first, and no side sends more of a lane than the other one has
room for: so a large value delays neither a cancel nor another call.
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from corosrv.base.errors import BadFrame
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import MAX_FRAME
from corosrv.workers.wire.descriptors import MAX_FDS

CONTROL = 0  # the lane that is open from the beginning
MAX_PIECE = 64 << 10  # bytes
WINDOW = 1 << 20  # bytes of a lane that may be on their way, or wait at the other side
MAX_VALUE = 1 << 30  # bytes beside one message
MAX_LANES = 4096

_PIECE = struct.Struct(">HBI")  # lane, kind, length
_HEAD = struct.Struct(">IHH")  # of a message: its length, and the numbers of lanes and of values beside it
_LANE, _SIZE, _CREDIT = struct.Struct(">H"), struct.Struct(">Q"), struct.Struct(">I")
_DATA, _WINDOW, _CLOSE = 0, 1, 2
_LEAST_CREDIT = WINDOW // 4  # fewer bytes are told later


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message of a lane. `fds`: memory files with the values beside it, unsealed, which the taker closes."""

    lane: int
    message: bytes
    lanes: tuple[int, ...]
    fds: tuple[int, ...]
    n_bytes: int  # of the values


@dataclass(frozen=True, slots=True)
class LaneClosed:
    """The other side has closed a lane; the control lane closes all of it."""

    lane: int


class _Assembly:
    """Makes the messages of a lane of its bytes. Owns the memory files of the message that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._n_wanted = _HEAD.size
        self._n_message = -1  # bytes; -1: the head is not there yet
        self._lanes: tuple[int, ...] = ()
        self._sizes: tuple[int, ...] = ()
        self._n_missing: deque[int] = deque()  # bytes of each value
        self._fds: list[int] = []

    def feed(self, lane: int, data: memoryview) -> Iterator[Arrived]:
        """Yields the messages that `data` completes. Raises BadFrame for a head that no message has, and OSError."""
        while data:
            if self._n_missing:
                n_taken = os.write(self._fds[-len(self._n_missing)], data[: self._n_missing[0]])
                self._n_missing[0] -= n_taken
                if not self._n_missing[0]:
                    self._n_missing.popleft()
            else:
                n_taken = min(len(data), self._n_wanted - len(self._buffer))
                self._buffer += data[:n_taken]
                if len(self._buffer) == self._n_wanted:
                    self._advance()
            data = data[n_taken:]
            if self._n_message >= 0 and len(self._buffer) == self._n_wanted and not self._n_missing:
                yield self._complete(lane)

    def _advance(self) -> None:
        """Goes on behind the head's fixed part, behind all of the head, or behind the message."""
        if self._n_message < 0:
            n_message, n_lanes, n_values = _HEAD.unpack_from(self._buffer)
            if not 0 < n_message <= MAX_FRAME or n_lanes + n_values > MAX_FDS:
                raise BadFrame(f"a message of {n_message} bytes, {n_lanes} lanes and {n_values} values")
            n_head = _HEAD.size + n_lanes * _LANE.size + n_values * _SIZE.size
            self._lanes, self._sizes = (0,) * n_lanes, (0,) * n_values
            self._n_message = n_message
            self._n_wanted = n_head + n_message
            return
        end_of_lanes = _HEAD.size + len(self._lanes) * _LANE.size
        end_of_head = end_of_lanes + len(self._sizes) * _SIZE.size
        self._lanes = tuple(lane for (lane,) in _LANE.iter_unpack(self._buffer[_HEAD.size : end_of_lanes]))
        self._sizes = tuple(size for (size,) in _SIZE.iter_unpack(self._buffer[end_of_lanes:end_of_head]))
        if sum(self._sizes) > MAX_VALUE or 0 in self._sizes:
            raise BadFrame(f"values of {sum(self._sizes)} bytes beside a message, where 1 to {MAX_VALUE} are allowed")
        for _ in self._sizes:
            self._fds.append(descriptors.create())
        self._n_missing.extend(self._sizes)

    def _complete(self, lane: int) -> Arrived:
        message = bytes(memoryview(self._buffer)[self._n_wanted - self._n_message :])
        arrived = Arrived(lane, message, self._lanes, tuple(self._fds), sum(self._sizes))
        self._fds = []
        self._buffer, self._n_wanted, self._n_message = bytearray(), _HEAD.size, -1
        return arrived

    def close(self) -> None:
        """Closes the files of a message that was not completed. Twice is harmless."""
        descriptors.close_all(self._fds)
        self._fds = []


@dataclass(slots=True)
class _Queued:
    """One message that waits to be sent: what is left of it, and the lanes that are open once all of it is sent."""

    views: deque[memoryview]
    lanes: tuple[int, ...] = ()


@dataclass(slots=True)
class _TrunkLane:
    """Both directions of a lane."""

    is_open: bool = False  # the other side knows it
    queue: deque[_Queued] = field(default_factory=deque)
    n_queued: int = 0  # bytes
    credit: int = WINDOW  # bytes that the other side has room for
    is_closing: bool = False  # nothing follows what is queued
    is_closed: bool = False  # by either side
    assembly: _Assembly = field(default_factory=_Assembly)
    room: int = WINDOW  # bytes that the other side may send
    n_unreleased: int = 0  # bytes that have come, for which it has got no new room


class Trunk:
    """Splits lanes into pieces and puts pieces together. Belongs to one thread; nothing waits.

    `take` returns what to send, `feed` takes what has come, `release` tells the other side that there is room again.
    """

    def __init__(self, *, opens_lanes: bool) -> None:
        """`opens_lanes`: lanes are opened by this side; otherwise by the other one."""
        self._opens_lanes = opens_lanes
        self._lanes = {CONTROL: _TrunkLane(is_open=True)}
        self._ready: deque[int] = deque()  # lanes with something to send and credit for it, each once
        self._urgent = bytearray()  # pieces that need no credit
        self._begun = bytearray()  # the head of a piece, as far as it has come
        self._current: tuple[int, int, int] | None = None  # lane, kind and what is missing of the piece that comes
        self._content = bytearray()  # of a piece that is no data
        self._touched: set[int] = set()  # lanes of which something has come
        self.is_over = False  # this side has closed the control lane, and all before it was taken

    # What this side sends.

    def open_lane(self) -> int:
        """Returns the number of a new lane, for `post` to announce. Raises BadFrame where there are too many."""
        assert self._opens_lanes, "the other side opens lanes"
        if len(self._lanes) >= MAX_LANES:
            raise BadFrame(f"more than {MAX_LANES} lanes over one connection")
        number = len(self._lanes)
        self._lanes[number] = _TrunkLane()
        return number

    def post(self, lane: int, message: bytes, lanes: Sequence[int] = (), values: Sequence[memoryview] = ()) -> None:
        """Queues a message, with lanes that it announces and the values beside it. Raises BadFrame for large ones."""
        if sum(map(len, values)) > MAX_VALUE:
            raise BadFrame(f"values of {sum(map(len, values))} bytes beside a message, where {MAX_VALUE} are allowed")
        found = self._lanes[lane]
        if found.is_closed or found.is_closing:
            return
        head = bytearray(_HEAD.pack(len(message), len(lanes), len(values)))
        for number in lanes:
            head += _LANE.pack(number)
        for value in values:
            head += _SIZE.pack(len(value))
        views = deque([memoryview(bytes(head) + message), *values])
        found.queue.append(_Queued(views, tuple(lanes)))
        found.n_queued += sum(map(len, views))
        self._make_ready(lane)

    def close_lane(self, lane: int) -> None:
        """Closes a lane behind all that is queued. Twice is harmless."""
        found = self._lanes[lane]
        if not found.is_closed:
            found.is_closing = True
            self._close_if_sent(lane)

    def n_queued(self, lane: int) -> int:
        """Returns how many bytes of a lane were not taken yet."""
        return self._lanes[lane].n_queued

    def _make_ready(self, lane: int) -> None:
        found = self._lanes[lane]
        if found.is_open and found.queue and found.credit > 0 and lane not in self._ready:
            if lane == CONTROL:
                self._ready.appendleft(lane)
            else:
                self._ready.append(lane)

    def _close_if_sent(self, lane: int) -> None:
        found = self._lanes[lane]
        if found.is_closing and found.is_open and not found.queue and not found.is_closed:
            self._urgent += _PIECE.pack(lane, _CLOSE, 0)
            self._end_lane(found)
            self.is_over = self.is_over or lane == CONTROL

    def take(self, n_bytes: int = MAX_PIECE) -> bytes:
        """Returns the next pieces: `n_bytes`, or a piece more; nothing where nothing may be sent now."""
        pieces, self._urgent = self._urgent, bytearray()
        while self._ready and len(pieces) < n_bytes:
            self._take_piece(self._ready.popleft(), pieces)
        if self._urgent:  # of lanes whose last piece this was
            pieces += self._urgent
            self._urgent = bytearray()
        return bytes(pieces)

    def _take_piece(self, lane: int, pieces: bytearray) -> None:
        found = self._lanes[lane]
        if not found.queue:  # closed meanwhile
            return
        message = found.queue[0]
        view = message.views[0]
        n_sent = min(len(view), MAX_PIECE, found.credit)
        pieces += _PIECE.pack(lane, _DATA, n_sent)
        pieces += view[:n_sent]
        found.credit -= n_sent
        found.n_queued -= n_sent
        message.views[0] = view[n_sent:]
        if n_sent == len(view):
            message.views.popleft()
        if not message.views:
            found.queue.popleft()
            for number in message.lanes:
                self._lanes[number].is_open = True
                self._make_ready(number)
                self._close_if_sent(number)
        self._make_ready(lane)
        self._close_if_sent(lane)

    # What the other side sends.

    def feed(self, data: bytes) -> Iterator[Arrived | LaneClosed]:
        """Yields what has come. Raises BadFrame for what no other side may send, and OSError without memory files."""
        view = memoryview(data)
        while view:
            if self._current is None:
                n_taken = min(len(view), _PIECE.size - len(self._begun))
                self._begun += view[:n_taken]
                view = view[n_taken:]
                if len(self._begun) == _PIECE.size:
                    yield from self._begin_piece()
                continue
            lane, kind, n_missing = self._current
            n_taken = min(len(view), n_missing)
            content, view = view[:n_taken], view[n_taken:]
            self._current = (lane, kind, n_missing - n_taken) if n_taken < n_missing else None
            if kind == _DATA:
                yield from self._add_data(lane, content)
            else:
                self._content += content
                if self._current is None:
                    self._add_credit(lane)

    def _begin_piece(self) -> Iterator[LaneClosed]:
        lane, kind, length = _PIECE.unpack(self._begun)
        self._begun.clear()
        if lane not in self._lanes or not self._lanes[lane].is_open:
            raise BadFrame(f"a piece of lane {lane}, which is not open")
        found = self._lanes[lane]
        if kind == _DATA and 0 < length <= min(MAX_PIECE, found.room):
            found.room -= length
            found.n_unreleased += length
        elif (kind, length) == (_CLOSE, 0):
            if not found.is_closed:
                self._end_lane(found)
                yield LaneClosed(lane)
            return
        elif (kind, length) != (_WINDOW, _CREDIT.size):
            raise BadFrame(
                f"a piece of the kind {kind} with {length} bytes for lane {lane}, which has {found.room} left"
            )
        self._current = lane, kind, length

    def _add_data(self, lane: int, content: memoryview) -> Iterator[Arrived]:
        found = self._lanes[lane]
        if found.is_closed:
            return
        self._touched.add(lane)
        for arrived in found.assembly.feed(lane, content):
            for number in arrived.lanes:
                self._accept_lane(number, arrived)
            yield arrived

    def _accept_lane(self, number: int, arrived: Arrived) -> None:
        if self._opens_lanes or number in self._lanes or number >= MAX_LANES:
            descriptors.close_all(arrived.fds)
            raise BadFrame(f"the other side opens lane {number}")
        self._lanes[number] = _TrunkLane(is_open=True)

    def _add_credit(self, lane: int) -> None:
        (credit,) = _CREDIT.unpack(self._content)
        self._content.clear()
        found = self._lanes[lane]
        if found.credit + credit > WINDOW:
            raise BadFrame(f"room for {credit} bytes more of lane {lane}, where {WINDOW} are the most")
        found.credit += credit
        self._make_ready(lane)

    def touched(self) -> set[int]:
        """Returns the lanes of which something has come since the last call, for `release`."""
        touched, self._touched = self._touched, set()
        return touched

    def release(self, lane: int) -> bool:
        """Gives the other side room for what has come of a lane, as it was passed on. Returns whether to `take`."""
        found = self._lanes[lane]
        if found.is_closed or found.n_unreleased < _LEAST_CREDIT:
            return False
        self._urgent += _PIECE.pack(lane, _WINDOW, _CREDIT.size) + _CREDIT.pack(found.n_unreleased)
        found.room += found.n_unreleased
        found.n_unreleased = 0
        return True

    def _end_lane(self, lane: _TrunkLane) -> None:
        lane.is_closed = True
        lane.queue.clear()
        lane.n_queued = 0
        lane.assembly.close()

    def close(self) -> None:
        """Drops all messages and closes their files. Twice is harmless."""
        for lane in self._lanes.values():
            self._end_lane(lane)
