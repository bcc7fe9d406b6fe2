"""A stream is cut between two events, however its pieces come."""

from __future__ import annotations

import pytest

from corosrv.gateway.forwarding.answers import MAX_HELD, EventBuffer

EVENTS = b'data: {"a":1}\n\n: ping\n\nevent: b\ndata: 2\n\n'


@pytest.mark.parametrize("events", [EVENTS, EVENTS.replace(b"\n", b"\r\n"), EVENTS.replace(b"\n", b"\r")])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_nothing_is_lost_and_each_piece_ends_an_event(events: bytes, size: int):
    buffer = EventBuffer()

    pieces = [buffer.add(events[begin : begin + size]) for begin in range(0, len(events), size)]

    assert b"".join(pieces) + buffer.drain() == events
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n", b"\r\r")) for piece in pieces if piece)


def test_lines_are_cut_between_two_lines():
    buffer = EventBuffer((b"\n",))

    assert buffer.add(b'{"a":1}\n{"a"') == b'{"a":1}\n'
    assert buffer.add(b":2}\n") == b'{"a":2}\n'


def test_whole_events_do_not_wait_for_the_next():
    assert EventBuffer().add(EVENTS + b"data: 3") == EVENTS


def test_the_beginning_of_an_event_is_held_back():
    buffer = EventBuffer()

    assert buffer.add(b"data: {") == b""
    assert buffer.add(b"}\n\n") == b"data: {}\n\n"


def test_the_end_of_a_stream_may_lack_its_empty_line():
    buffer = EventBuffer()
    buffer.add(b"data: 1\n")

    assert (buffer.drain(), buffer.drain()) == (b"data: 1\n", b"")


def test_an_event_without_end_does_not_take_the_memory():
    buffer = EventBuffer()

    assert buffer.add(b"a" * MAX_HELD) == b""
    assert len(buffer.add(b"a")) == MAX_HELD + 1
