"""What two sides of a trunk say to each other, with nothing between them but bytes."""

from __future__ import annotations

import os
import struct

import pytest

from corosrv.base.errors import BadFrame
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.trunk import CONTROL, MAX_PIECE, WINDOW, Arrived, LaneClosed, Trunk

PIECE = struct.Struct(">HBI")


class Pair:
    """The server's side and the worker's, and what has come there."""

    def __init__(self) -> None:
        self.server, self.worker = Trunk(opens_lanes=True), Trunk(opens_lanes=False)
        self.arrived: list[Arrived | LaneClosed] = []

    def carry(self, n_bytes: int = MAX_PIECE, step: int = 1 << 30) -> None:
        """Carries what the server may send, in steps of so many bytes; nothing is passed on, and no room given."""
        while data := self.server.take(n_bytes):
            for start in range(0, len(data), step):
                self.arrived += self.worker.feed(data[start : start + step])

    def carry_back(self) -> None:
        while data := self.worker.take():
            list(self.server.feed(data))

    @property
    def messages(self) -> list[tuple[int, bytes]]:
        return [(arrived.lane, arrived.message) for arrived in self.arrived if isinstance(arrived, Arrived)]

    def open_lane(self) -> int:
        lane = self.server.open_lane()
        self.server.post(CONTROL, b"a lane", [lane])
        self.carry()
        self.arrived.clear()
        return lane


@pytest.fixture
def pair() -> Pair:
    return Pair()


@pytest.mark.parametrize("step", [1, 7, 1 << 30])
def test_messages_come_as_they_were_sent_however_they_are_cut(pair: Pair, step: int):
    lane = pair.server.open_lane()
    pair.server.post(CONTROL, b"a lane", [lane])
    pair.server.post(lane, b"first")
    pair.server.post(lane, b"second", values=[memoryview(b"x" * 5000), memoryview(b"y")])

    pair.carry(step=step)

    assert pair.messages == [(CONTROL, b"a lane"), (lane, b"first"), (lane, b"second")]
    assert isinstance(pair.arrived[0], Arrived)
    assert pair.arrived[0].lanes == (lane,)
    last = pair.arrived[2]
    assert isinstance(last, Arrived)
    assert last.n_bytes == 5001
    assert [os.pread(fd, 9999, 0) for fd in last.fds] == [b"x" * 5000, b"y"]
    descriptors.close_all(last.fds)


def test_nothing_of_a_lane_is_sent_before_the_other_side_knows_it(pair: Pair):
    lane = pair.server.open_lane()
    pair.server.post(lane, b"early")

    pair.carry()
    assert pair.messages == []
    pair.server.post(CONTROL, b"a lane", [lane])
    pair.carry()

    assert pair.messages == [(CONTROL, b"a lane"), (lane, b"early")]


def test_a_lane_that_nobody_reads_stops_at_its_window_and_no_other_does(pair: Pair):
    slow, fast = pair.open_lane(), pair.open_lane()
    for _ in range(3):
        pair.server.post(slow, bytes(WINDOW // 2))
    pair.carry()
    assert [lane for lane, _ in pair.messages] == [slow]

    pair.server.post(fast, b"passes")
    pair.server.post(CONTROL, b"cancel")
    pair.carry()
    assert pair.messages[1:] == [(CONTROL, b"cancel"), (fast, b"passes")]

    assert pair.worker.release(slow)
    pair.carry_back()
    pair.carry()
    assert [lane for lane, _ in pair.messages[3:]] == [slow, slow]
    assert pair.server.n_queued(slow) == 0


def test_a_cancel_waits_for_one_piece_of_a_large_message_at_most(pair: Pair):
    lane = pair.open_lane()
    pair.server.post(lane, bytes(WINDOW // 2))
    pair.arrived += pair.worker.feed(pair.server.take(1))
    pair.server.post(CONTROL, b"cancel")

    pair.arrived += pair.worker.feed(pair.server.take(1))

    assert pair.messages == [(CONTROL, b"cancel")]


def test_lanes_take_turns(pair: Pair):
    first, second = pair.open_lane(), pair.open_lane()
    pair.server.post(first, bytes(10 * MAX_PIECE))
    pair.server.post(second, bytes(MAX_PIECE))

    pair.carry()

    assert [lane for lane, _ in pair.messages] == [second, first]


def test_a_lane_is_closed_behind_what_was_sent_and_takes_nothing_more(pair: Pair):
    lane = pair.open_lane()
    pair.server.post(lane, b"last")
    pair.server.close_lane(lane)
    pair.server.post(lane, b"too late")

    pair.carry()

    assert pair.messages == [(lane, b"last")]
    assert pair.arrived[-1] == LaneClosed(lane)
    assert not pair.server.is_over


def test_the_end_of_the_control_lane_is_the_end(pair: Pair):
    pair.server.post(CONTROL, b"last")
    pair.server.close_lane(CONTROL)

    pair.carry()

    assert pair.messages == [(CONTROL, b"last")]
    assert pair.arrived[-1] == LaneClosed(CONTROL)
    assert pair.server.is_over


HEAD = struct.Struct(">IHH")


@pytest.mark.parametrize(
    "data",
    [
        PIECE.pack(9, 0, 1) + b"x",
        PIECE.pack(CONTROL, 0, 0),
        PIECE.pack(CONTROL, 0, MAX_PIECE + 1),
        PIECE.pack(CONTROL, 7, 1),
        PIECE.pack(CONTROL, 1, 4) + b"\x00\x00\x00\x01",
        PIECE.pack(CONTROL, 0, 8) + HEAD.pack(0, 0, 0),
        PIECE.pack(CONTROL, 0, 8) + HEAD.pack(9 << 20, 0, 0),
        PIECE.pack(CONTROL, 0, 8) + HEAD.pack(1, 0, 5000),
        PIECE.pack(CONTROL, 0, 17) + HEAD.pack(1, 0, 1) + struct.pack(">Q", 1 << 40) + b"x",
        PIECE.pack(CONTROL, 0, 17) + HEAD.pack(1, 0, 1) + struct.pack(">Q", 0) + b"x",
        PIECE.pack(CONTROL, 0, 11) + HEAD.pack(1, 1, 0) + struct.pack(">H", 1) + b"x",
        PIECE.pack(CONTROL, 0, 11) + HEAD.pack(1, 1, 0) + struct.pack(">H", CONTROL) + b"x",
    ],
    ids=[
        "lane",
        "empty",
        "long",
        "kind",
        "credit",
        "no message",
        "oversize",
        "many",
        "huge",
        "hollow",
        "opens",
        "again",
    ],
)
def test_what_no_other_side_may_send_is_refused(data: bytes):
    with pytest.raises(BadFrame):
        list(Trunk(opens_lanes=True).feed(data))


def test_more_than_the_window_is_refused():
    trunk = Trunk(opens_lanes=True)
    piece = PIECE.pack(CONTROL, 0, MAX_PIECE) + HEAD.pack(2 * WINDOW, 0, 0) + bytes(MAX_PIECE - HEAD.size)
    more = PIECE.pack(CONTROL, 0, MAX_PIECE) + bytes(MAX_PIECE)
    list(trunk.feed(piece + more * (WINDOW // MAX_PIECE - 1)))

    with pytest.raises(BadFrame, match="which has 0 left"):
        list(trunk.feed(more))
