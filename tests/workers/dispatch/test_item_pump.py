"""Items of calls that are handed to a sink while the greenlet that wants them sleeps."""

from __future__ import annotations

import gevent
import pytest
from gevent import get_hub

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs.infer import HandlerCard, InferEnd, InferItem, InferOutputs
from corosrv.workers.dispatch.answers import HandlerReader

CARD = HandlerCard("m", is_stream=True)
TIMEOUT = 10.0


def outputs(number: int) -> InferOutputs:
    return InferOutputs((), {"number": number})


class Sink:
    """Keeps what it gets, and where it was called; wants no more after `n_calls`."""

    def __init__(self, n_calls: int = 1000) -> None:
        self.calls: list[list[InferItem]] = []
        self.greenlets: list[object] = []
        self._n_calls = n_calls

    def __call__(self, items: list[InferItem]) -> bool:
        self.calls.append(items)
        self.greenlets.append(gevent.getcurrent())
        return len(self.calls) < self._n_calls


@pytest.fixture
def reader() -> HandlerReader:
    return HandlerReader(CARD, lambda: None)


def test_items_of_one_turn_are_handed_over_together_and_in_the_hub(reader: HandlerReader):
    sink = Sink()
    pumping = gevent.spawn(reader.pump, sink)
    gevent.idle()

    reader.add(outputs(1), 0)
    reader.add(outputs(2), 0)
    gevent.idle()
    reader.add(outputs(3), 0)
    reader.end(None)
    pumping.get(timeout=TIMEOUT)

    assert sink.calls == [[outputs(1), outputs(2)], [outputs(3), InferEnd(None)]]
    assert set(sink.greenlets) == {get_hub()}
    assert reader.is_finished


def test_what_was_there_before_is_handed_over_too(reader: HandlerReader):
    sink = Sink()
    reader.add(outputs(1), 0)
    reader.end(None)

    reader.pump(sink, TIMEOUT)

    assert sink.calls == [[outputs(1), InferEnd(None)]]


def test_a_sink_that_wants_no_more_leaves_the_rest_to_the_next(reader: HandlerReader):
    first, second = Sink(n_calls=1), Sink(n_calls=1)
    reader.add(outputs(1), 0)
    reader.pump(first, TIMEOUT)
    reader.add(outputs(2), 0)

    gevent.idle()
    reader.pump(second, TIMEOUT)

    assert (first.calls, second.calls) == ([[outputs(1)]], [[outputs(2)]])
    assert not reader.is_finished


def test_what_a_sink_raises_ends_the_pump_and_nothing_else(reader: HandlerReader):
    def fail(items: list[InferItem]) -> bool:
        raise OSError("the client left")

    reader.add(outputs(1), 0)

    with pytest.raises(OSError, match="the client left"):
        reader.pump(fail, TIMEOUT)
    reader.add(outputs(2), 0)
    assert reader.take(TIMEOUT) == [outputs(2)]


def test_a_pump_that_was_ended_hands_nothing_over(reader: HandlerReader):
    sink = Sink()
    pumping = gevent.spawn(reader.pump, sink)
    gevent.idle()

    pumping.kill(block=False)
    reader.add(outputs(1), 0)  # is to be handed over in the same turn of the hub, behind the end
    pumping.join(TIMEOUT)
    gevent.idle()

    assert sink.calls == []
    assert reader.take(TIMEOUT) == [outputs(1)]


def test_items_put_the_timeout_off_and_their_absence_raises_it(reader: HandlerReader):
    sink = Sink()
    pumping = gevent.spawn(reader.pump, sink, 0.2)
    gevent.idle()
    reader.add(outputs(1), 0)

    with pytest.raises(ReadTimeout, match=r"nothing to read for 0\.2 s"):
        pumping.get(timeout=TIMEOUT)

    assert sink.calls == [[outputs(1)]]
    reader.add(outputs(2), 0)
    assert reader.take(TIMEOUT) == [outputs(2)]


def test_a_closed_reader_ends_its_pump(reader: HandlerReader):
    closing = HandlerReader(CARD, lambda: closing.end(None))
    pumping = gevent.spawn(closing.pump, Sink())
    gevent.idle()

    closing.close()

    pumping.get(timeout=TIMEOUT)
