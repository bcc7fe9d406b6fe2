"""Heads of answers, in whatever pieces they come."""

from __future__ import annotations

import collections

import pytest

from corosrv.fleet.upstreams.answer_body import MAX_FIELDS, MAX_HEAD, BadAnswer, HeadReader, parse_head, received_head

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Empty:\r\n\r\ndata: 1\n\n"
PARSED = received_head(200, 1, (("Content-Type", "text/event-stream"), ("X-Empty", "")))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_head_is_the_same_however_it_arrives(size: int):
    reader = HeadReader()
    heads = []
    for begin in range(0, len(ANSWER), size):
        end = begin + size
        if (head := reader.feed(ANSWER[begin:end])) is not None:
            heads.append(head)
            break

    assert heads == [PARSED]
    assert reader.rest + ANSWER[end:] == b"data: 1\n\n"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("X: a", (("X", "a"),)),
        ("X:a", (("X", "a"),)),
        ("X: \t a b \t ", (("X", "a b"),)),
        ("X: a:b", (("X", "a:b"),)),
        ("X : a", (("X", "a"),)),
        ("X: a\r\n  b\r\n\tc", (("X", "a b c"),)),
        ("X: 1\r\nX: 2", (("X", "1"), ("X", "2"))),
        ("X: \xe9", (("X", "\xe9"),)),
        ("X: a\nY: b", (("X", "a"), ("Y", "b"))),
        ("X: a\rY: b", ()),
        ("X Y: a", ()),
        (": a", ()),
        ("nothing", ()),
        ("nothing\r\nX: a", (("X", "a"),)),
    ],
)
def test_fields_are_names_and_values_of_one_line(line: str, fields: tuple[tuple[str, str], ...]):
    assert parse_head(f"HTTP/1.1 200 OK\r\n{line}\r\n\r\n".encode("latin-1")).fields == fields


@pytest.mark.parametrize(
    ("line", "status", "minor"),
    [
        (b"HTTP/1.1 200 OK\r\n", 200, 1),
        (b"HTTP/1.0 404 Not Found\n", 404, 0),
        (b"HTTP/1.1 200\r\n", 200, 1),
        (b"HTTP/1.1 999 \xff\r\n", 999, 1),
    ],
)
def test_a_status_line_says_version_and_status(line: bytes, status: int, minor: int):
    head = parse_head(line + b"\r\n")

    assert (head.status, head.minor) == (status, minor)


@pytest.mark.parametrize(
    "line",
    [
        b"HTTP/1.1 20 OK", b"HTTP/1.1 099 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 abc", b"HTTP/2 200", b"HTTP/1.1  200",
        b" HTTP/1.1 200 OK", b"http/1.1 200 OK", b"", b"garbage", b"HTTP/1.1 200OK", b"\r\nHTTP/1.1 200 OK",
    ],
)  # fmt: skip
def test_what_is_no_status_line_is_refused(line: bytes):
    with pytest.raises(BadAnswer):
        parse_head(line + b"\r\n\r\n")


def test_interim_answers_are_skipped():
    reader = HeadReader()

    assert reader.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n") is None
    head = reader.feed(b"HTTP/1.1 100 Continue\r\nX: a\r\n\r\n" + ANSWER)

    assert head == PARSED
    assert reader.rest == b"data: 1\n\n"


@pytest.mark.parametrize(
    "piece", [b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1000, b"a" * 1000, b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_a_head_that_never_ends_is_refused(piece: bytes):
    reader = HeadReader()

    with pytest.raises(BadAnswer, match="longer than"):
        collections.deque(map(reader.feed, [piece] * (MAX_HEAD // 20)), maxlen=0)


def test_a_head_has_no_more_fields_than_it_may():
    assert len(parse_head(b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * MAX_FIELDS + b"\r\n").fields) == MAX_FIELDS
    with pytest.raises(BadAnswer, match="header fields"):
        parse_head(b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * (MAX_FIELDS + 1) + b"\r\n")


def test_members_are_those_of_all_fields_of_a_name():
    head = parse_head(b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive,, X-A\r\nX: b\r\nconnection: close\r\n\r\n")

    assert head.members("connection") == ["keep-alive", "x-a", "close"]
    assert head.members("y") == []
