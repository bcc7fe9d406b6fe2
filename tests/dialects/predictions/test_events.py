"""Reading a prediction's events: waiting, silence, leaving, and many at once."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest

from corosrv.base.errors import Misuse, ReadTimeout
from corosrv.dialects.predictions.prediction import Event, EventEncoder, EventReader, History

TIMEOUT = 10


@pytest.fixture
def history() -> History:
    return History(100)


def reader(history: History, after: int | None = None, on_leave: Callable[[bool], None] = bool) -> EventReader:
    return EventReader(history, after, on_leave)  # type: ignore[arg-type]  # what it returns is dropped


def indexes(events: list[Event]) -> list[int]:
    return [event.data["index"] for event in events]


def append(history: History, index: int, is_last: bool = False) -> None:
    history.append("completed" if is_last else "output", {"index": index}, is_last)


def test_an_event_wakes_the_reader_that_waits_for_it(history: History):
    reading = gevent.spawn(reader(history).take)
    gevent.idle()
    assert not reading.ready()

    append(history, 0)

    assert indexes(reading.get(timeout=TIMEOUT)) == [0]


def test_events_that_were_unread_come_together(history: History):
    append(history, 0)
    append(history, 1)

    assert EventEncoder().encode(reader(history).take()).count(b"event: output") == 2


def test_reading_ends_behind_the_last_event(history: History):
    reading = reader(history)
    append(history, 0, is_last=True)

    assert indexes(reading.take()) == [0]

    assert reading.is_finished
    assert reading.take() == []


def test_who_has_all_events_already_has_nothing_to_wait_for(history: History):
    append(history, 0, is_last=True)

    assert reader(history, after=1).is_finished


def test_silence_is_told_and_ends_nothing(history: History):
    reading = reader(history)
    with pytest.raises(ReadTimeout):
        reading.take(0.01)

    append(history, 0)

    assert indexes(reading.take(0.01)) == [0]


def test_events_begin_the_silence_anew(history: History):
    reading, seen = reader(history), list[int]()

    def pump() -> None:
        reading.pump(lambda events: bool(seen.extend(indexes(events)) or True), 0.7)

    pumping = gevent.spawn(pump)
    for index in range(4):
        gevent.sleep(0.2)
        append(history, index)
    append(history, 4, is_last=True)
    pumping.get(timeout=TIMEOUT)

    assert seen == [0, 1, 2, 3, 4]


def test_a_sink_gets_events_without_waking_anybody_until_it_has_enough(history: History):
    reading, seen, greenlets = reader(history), list[int](), set[object]()

    def sink(events: list[Event]) -> bool:
        seen.extend(indexes(events))
        greenlets.add(gevent.getcurrent())
        return len(seen) < 3

    pumping = gevent.spawn(reading.pump, sink)
    gevent.idle()
    for index in range(3):
        append(history, index)
        gevent.idle()
    pumping.get(timeout=TIMEOUT)

    assert seen == [0, 1, 2]
    assert greenlets == {gevent.get_hub()}


def test_what_a_sink_raises_comes_out(history: History):
    def sink(events: list[Event]) -> bool:
        raise ConnectionError

    def pump() -> bool:
        with pytest.raises(ConnectionError):
            reader(history).pump(sink)
        return True

    pumping = gevent.spawn(pump)
    gevent.idle()
    append(history, 0)

    assert pumping.get(timeout=TIMEOUT)


def test_leaving_is_told_once_and_ends_the_wait(history: History):
    left: list[bool] = []
    reading = reader(history, on_leave=left.append)
    waiting = gevent.spawn(reading.take)
    gevent.idle()

    reading.cancel()
    reading.close()

    assert waiting.get(timeout=TIMEOUT) == []
    assert left == [True]
    assert history.n_readers == 0


def test_who_read_to_the_end_has_not_left(history: History):
    left: list[bool] = []
    reading = reader(history, on_leave=left.append)
    append(history, 0, is_last=True)
    reading.take()

    reading.close()

    assert left == [False]


def test_a_second_greenlet_is_refused(history: History):
    reading = reader(history)
    first = gevent.spawn(reading.take)
    gevent.idle()

    with pytest.raises(Misuse):
        reading.take()
    first.kill()


def test_a_reader_that_was_killed_is_woken_no_more(history: History):
    waiting = gevent.spawn(reader(history).take)
    gevent.idle()
    waiting.kill()

    assert not history._parked


def test_a_thousand_readers_cost_the_prediction_nothing(history: History):
    """An event is handed over when the prediction gives way, once for all that happened."""
    n_pieces = 0

    def sink(events: list[Event]) -> bool:
        nonlocal n_pieces
        n_pieces += 1
        return True

    pumping = [gevent.spawn(reader(history).pump, sink) for _ in range(1000)]
    gevent.idle()

    for index in range(50):
        append(history, index)
    append(history, 50, is_last=True)
    assert n_pieces == 0
    gevent.joinall(pumping, TIMEOUT, raise_error=True)

    assert n_pieces == 1000


def test_events_are_encoded_once_for_all(history: History):
    one, other = reader(history), reader(history)
    append(history, 0)

    assert one.take()[0].wire is other.take()[0].wire
