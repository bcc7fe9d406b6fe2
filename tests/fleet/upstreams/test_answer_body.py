"""Tests where bodies of answers end."""

from __future__ import annotations

import pytest

from corosrv.fleet.upstreams.answer_body import BadAnswer, ReceivedHead, body_decoder, keeps_connection, received_head


def head(*fields: tuple[str, str], status: int = 200, minor: int = 1) -> ReceivedHead:
    return received_head(status, minor, fields)


def body_of(data: bytes, received: ReceivedHead, method: str = "POST") -> tuple[bytes, bool]:
    """Returns what a body holds, and whether it ends with these bytes."""
    decoder = body_decoder(received, method)
    return decoder.feed(data), decoder.is_finished


@pytest.mark.parametrize(
    ("received", "method", "content", "is_whole"),
    [
        (head(("content-length", "2")), "POST", b"ab", True),
        (head(("Content-Length", "3"), ("Content-Length", "3")), "POST", b"abc", True),
        (head(("Content-Length", "3, 3")), "POST", b"abc", True),
        (head(("Content-Length", "9")), "POST", b"abcd", False),
        (head(), "POST", b"abcd", False),
        (head(("Content-Length", "4")), "HEAD", b"", True),
        (head(("Content-Length", "4"), status=204), "POST", b"", True),
        (head(("Transfer-Encoding", "chunked"), status=304), "POST", b"", True),
    ],
)
def test_a_body_is_as_long_as_its_head_says(received: ReceivedHead, method: str, content: bytes, is_whole: bool):
    assert body_of(b"abcd", received, method) == (content, is_whole)


def test_chunks_count_and_no_length_beside_them():
    received = head(("Content-Length", "1"), ("Transfer-Encoding", "Chunked"))

    assert body_of(b"2\r\nab\r\n0\r\n\r\n", received) == (b"ab", True)


@pytest.mark.parametrize(
    "fields",
    [
        (("Transfer-Encoding", "gzip, chunked"),), (("Transfer-Encoding", "chunked, identity"),),
        (("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")), (("Content-Length", "-1"),),
        (("Content-Length", "+1"),), (("Content-Length", "1_0"),), (("Content-Length", "x"),),
        (("Content-Length", "1"), ("Content-Length", "2")), (("Content-Length", "1" * 16),),
        (("Content-Length", "\u0661"),),
    ],
)  # fmt: skip
def test_a_body_whose_end_is_not_known_is_refused(fields: tuple[tuple[str, str], ...]):
    with pytest.raises(BadAnswer):
        body_decoder(head(*fields), "POST")


@pytest.mark.parametrize("fields", [(("Content-Length", "3"),), (("Transfer-Encoding", "chunked"),)])
def test_a_body_that_lacks_something_must_not_end_with_its_connection(fields: tuple[tuple[str, str], ...]):
    decoder = body_decoder(head(*fields), "POST")
    decoder.feed(b"2\r")

    with pytest.raises(BadAnswer):
        decoder.close()


def test_a_body_without_a_length_ends_with_its_connection():
    decoder = body_decoder(head(), "POST")
    decoder.feed(b"ab")

    decoder.close()

    assert decoder.is_finished


def test_what_follows_a_body_is_noticed():
    decoder = body_decoder(head(("Content-Length", "1")), "POST")

    assert decoder.feed(b"ab") == b"a"
    assert decoder.has_more


@pytest.mark.parametrize(
    ("received", "is_kept"),
    [
        (head(("Content-Length", "0")), True),
        (head(("Content-Length", "0"), ("Connection", "X-A, Close")), False),
        (head(("Content-Length", "0"), minor=0), False),
        (head(("Content-Length", "0"), ("Connection", "keep-alive"), minor=0), True),
        (head(), False),
    ],
)
def test_a_connection_is_kept_where_the_upstream_keeps_it(received: ReceivedHead, is_kept: bool):
    assert keeps_connection(received, body_decoder(received, "POST")) is is_kept
