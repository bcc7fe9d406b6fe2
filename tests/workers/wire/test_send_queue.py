"""What a socket has not taken yet: order, bytes, and who closes the descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from corosrv.workers.wire.codec import SendQueue
from tests.support.descriptors import n_descriptors


@pytest.fixture
def queue() -> Iterator[SendQueue]:
    queue = SendQueue()
    yield queue
    queue.close()


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_frames_leave_in_order_and_their_bytes_are_counted(queue: SendQueue) -> None:
    queue.add(memoryview(b"first"))
    queue.add(memoryview(b"second"))

    assert queue.n_bytes == 11
    assert queue.advance(5)
    assert bytes(queue.head[0]) == b"second"
    assert queue.n_bytes == 6
    assert queue.advance(6)
    assert not queue


def test_what_was_not_sent_of_a_frame_stays_at_the_head(queue: SendQueue) -> None:
    queue.add(memoryview(b"first"))

    assert not queue.advance(2)

    assert bytes(queue.head[0]) == b"rst"
    assert queue.n_bytes == 3


def test_descriptors_are_duplicates_so_the_caller_may_close_its_own(queue: SendQueue, fd: int) -> None:
    queue.add(memoryview(b"first"), [fd])

    (duplicate,) = queue.head[1]

    assert duplicate != fd
    assert os.path.sameopenfile(duplicate, fd)


@pytest.mark.own_process
def test_descriptors_go_with_the_first_byte_and_not_before(queue: SendQueue, fd: int) -> None:
    before = n_descriptors()
    queue.add(memoryview(b"first"), [fd])

    queue.advance(0)
    assert len(queue.head[1]) == 1
    queue.advance(1)

    assert queue.head[1] == ()
    assert n_descriptors() <= before


@pytest.mark.own_process
def test_nothing_is_left_open_when_a_queue_is_closed(queue: SendQueue, fd: int) -> None:
    before = n_descriptors()
    queue.add(memoryview(b"first"), [fd, fd])
    queue.add(memoryview(b"second"), [fd])

    queue.close()

    assert not queue
    assert queue.n_bytes == 0
    assert n_descriptors() <= before
