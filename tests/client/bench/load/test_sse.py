"""Events from bytes, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corosrv.client.bench.transcript import Scanner

STREAM = (
    b"data: one\n\n"
    b": a comment\n\n"
    b"event: delta\ndata: two\nid: 7\n\n"
    b"data:three\n\n"
    b"data: four\ndata: goes on\n\n"
    b"\n\n"
    b"data: not over"
)
EVENTS = [b"one", b"two", b"three", b"four\ngoes on"]


def scan(pieces: list[bytes]) -> list[bytes]:
    scanner = Scanner()
    return [event for piece in pieces for event in scanner.feed(piece)]


@given(st.lists(st.integers(0, len(STREAM) * 2)), st.booleans())
def test_events_are_the_same_wherever_they_are_cut(cuts, is_windows):
    stream = STREAM.replace(b"\n", b"\r\n") if is_windows else STREAM
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    assert scan([stream[a:b] for a, b in pairwise(edges)]) == EVENTS


def test_an_event_comes_with_the_byte_that_completes_it():
    scanner = Scanner()

    assert scanner.feed(b"data: x\n") == []
    assert scanner.feed(b"\n") == [b"x"]


@pytest.mark.parametrize("stream", [b"", b":\n\n:\n\n", b"event: ping\n\n"])
def test_without_data_there_is_no_event(stream):
    assert scan([stream]) == []
