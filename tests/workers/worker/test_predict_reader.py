from __future__ import annotations

from collections.abc import Iterator

import gevent
import pytest

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs.buffered import MAX_UNREAD
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, LogLine
from corosrv.workers.wire.messages import SlotToServer
from corosrv.workers.worker.parent.predict_call import PredictReader

LINE = LogLine("stdout", "hello\n")
DONE = Done("x", 0.5)


class Cancels:
    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> None:
        self.n += 1


@pytest.fixture
def cancels() -> Cancels:
    return Cancels()


@pytest.fixture
def reader(cancels: Cancels) -> Iterator[PredictReader]:
    with gevent.Timeout(10):
        yield PredictReader(cancels)


def test_messages_are_taken_in_order_and_nothing_after_the_terminal_one(reader: PredictReader) -> None:
    reader.add(LINE, 10)
    reader.add(DONE, 10)

    assert not reader.is_finished
    assert reader.take() == [LINE, DONE]
    assert reader.is_finished
    assert reader.take() == []


def test_a_message_wakes_whoever_waits_for_it(reader: PredictReader) -> None:
    reading = gevent.spawn(list, reader)
    gevent.idle()

    reader.add(LINE, 10)
    gevent.idle()
    reader.add(DONE, 10)

    assert reading.get(timeout=5) == [LINE, DONE]


def test_a_reader_can_be_used_on_after_a_time_out(reader: PredictReader) -> None:
    with pytest.raises(ReadTimeout):
        reader.take(timeout=0.001)
    reader.add(LINE, 10)

    assert reader.take(timeout=5) == [LINE]


@pytest.mark.parametrize(
    "terminal", [DONE, Failed("x", 0.0, "no"), Cancelled("x", 0.0)], ids=lambda m: type(m).__name__
)
def test_nothing_can_be_put_behind_a_terminal_message(reader: PredictReader, terminal: SlotToServer) -> None:
    reader.add(terminal, 10)

    with pytest.raises(AssertionError):
        reader.add(LINE, 10)


def test_a_cancel_is_sent_once_and_not_after_the_end(reader: PredictReader, cancels: Cancels) -> None:
    reader.cancel()
    reader.cancel()
    assert cancels.n == 1

    finished = PredictReader(cancels)
    finished.add(DONE, 10)
    finished.cancel()
    assert cancels.n == 1


def test_leaving_the_block_cancels_what_is_unfinished(reader: PredictReader, cancels: Cancels) -> None:
    with reader:
        reader.add(LINE, 10)

    assert cancels.n == 1


def test_a_closed_reader_drops_what_comes_and_never_waits(reader: PredictReader) -> None:
    reader.add(LINE, MAX_UNREAD + 1)
    waiting = gevent.spawn(reader.wait_for_room)

    reader.close()
    reader.add(LINE, MAX_UNREAD + 1)

    waiting.get(timeout=5)
    reader.wait_for_room()
    assert reader.take() == []


def test_closing_wakes_whoever_takes(reader: PredictReader) -> None:
    reading = gevent.spawn(reader.take)
    gevent.idle()

    reader.close()

    assert reading.get(timeout=5) == []


def test_there_is_room_until_the_limit_and_again_when_messages_are_taken(reader: PredictReader) -> None:
    reader.add(LINE, MAX_UNREAD)
    reader.wait_for_room()
    reader.add(LINE, 1)
    waiting = gevent.spawn(reader.wait_for_room)
    gevent.idle()
    assert not waiting.ready()

    reader.take()

    waiting.get(timeout=5)
