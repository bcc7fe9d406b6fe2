"""A stream is cut between two events, however its pieces come."""

from __future__ import annotations

import pytest

from corosrv.contracts.jobs.infer import AnswerBody, AnswerHead, HandlerCard, InferItem
from corosrv.gateway.forwarding.answers import MAX_HELD, EventBuffer
from corosrv.gateway.forwarding.homes import NotingReader, ResponseHomes
from corosrv.workers.dispatch.answers import HandlerReader

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


def passed_by(status: int, body: bytes, size: int) -> tuple[list[tuple[str, str]], list[InferItem], list[InferItem]]:
    """Returns what is noted of an answer in pieces of this size, what a reader gets, and what has come."""
    noted: list[tuple[str, str]] = []
    source = HandlerReader(HandlerCard("small"), lambda: None)
    reader = NotingReader(source, lambda id, upstream: noted.append((id, upstream)))
    sent: list[InferItem] = [AnswerHead(status=status, upstream="upstream-1")]
    sent += [AnswerBody(data=body[begin : begin + size]) for begin in range(0, len(body), size)]
    for item in sent:
        source.add(item, 0)  # type: ignore[arg-type]
    taken = reader.take()
    source.end(None)
    return noted, taken, sent


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_the_id_of_a_response_is_noted_once_however_it_comes_and_nothing_is_changed(size: int):
    body = b'data: {"response":{"id": "resp_ab-1","output":[{"id":"msg_2"}],"previous_response_id":"resp_0"}}\n\n'

    noted, taken, sent = passed_by(200, body + body, size)

    assert taken == sent
    assert noted[0][1] == "upstream-1"
    assert [id for id, _ in noted] == ["resp_ab-1"]
    assert passed_by(404, body, size)[0] == []
    assert passed_by(200, b" " * 5000 + body, size)[0] == []


def test_a_caller_s_earliest_responses_are_forgotten_and_no_other_s(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("corosrv.gateway.forwarding.homes.MAX_HOMES", 2)
    homes = ResponseHomes()
    for caller, id in (("a", "1"), ("a", "2"), ("b", "3"), ("a", "4")):
        homes.note(caller, id, f"upstream-{id}")

    assert [homes.find("a", id) for id in "1234"] == ["", "upstream-2", "", "upstream-4"]
    assert homes.find("b", "3") == "upstream-3"
    homes.forget("b", "3")
    homes.forget("b", "4")
    assert homes.find("b", "3") == ""
