"""What a socket has brought: whole messages with their descriptors, whatever pieces they come in."""

from __future__ import annotations

import os

import pytest

from corosrv.base.errors import BadFrame
from corosrv.workers.wire.codec import ReceiveQueue, framed
from tests.support.descriptors import n_descriptors


def open_fd() -> int:
    return os.open(os.devnull, os.O_RDONLY)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 100])
def test_messages_come_whole_and_in_order_whatever_pieces_they_arrive_in(size: int) -> None:
    queue, data = ReceiveQueue(), framed(b"first") + framed(b"second")

    for start in range(0, len(data), size):
        queue.feed(data[start : start + size], [])

    assert [queue.take(), queue.take(), queue.take()] == [(b"first", ()), (b"second", ()), None]


def test_descriptors_belong_to_the_message_that_they_came_with() -> None:
    queue = ReceiveQueue()
    queue.feed(framed(b"first"), [])
    queue.feed(framed(b"second")[:3], [7])
    queue.feed(framed(b"second")[3:], [])

    assert [queue.take(), queue.take()] == [(b"first", ()), (b"second", (7,))]


@pytest.mark.own_process
def test_a_bad_frame_leaves_no_descriptor_of_its_read_open() -> None:
    queue, before = ReceiveQueue(limit=10), n_descriptors()

    with pytest.raises(BadFrame, match="11 bytes"):
        queue.feed(b"\0\0\0\x0b", [open_fd()])

    assert n_descriptors() <= before


def test_a_stream_may_end_between_frames_and_not_within_one() -> None:
    queue = ReceiveQueue()
    queue.feed(framed(b"first"), [])
    queue.end()
    queue.feed(framed(b"second")[:-1], [])

    with pytest.raises(BadFrame, match="within a frame"):
        queue.end()


@pytest.mark.own_process
def test_nothing_is_left_of_a_queue_that_is_closed() -> None:
    queue, before = ReceiveQueue(), n_descriptors()
    queue.feed(framed(b"first"), [open_fd()])

    queue.close()

    assert queue.take() is None
    assert n_descriptors() <= before
