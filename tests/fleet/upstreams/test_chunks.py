"""The decoder of chunked bodies."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from corosrv.fleet.upstreams.answer_body import MAX_LINE, MAX_TRAILERS, BadChunks, ChunkDecoder

BODY = b"5\r\nhello\r\nA;name=value\r\n, chunked \r\n5 \r\nworld\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_body_is_the_same_however_it_arrives(size: int):
    decoder = ChunkDecoder()

    content = b"".join(decoder.feed(BODY[i : i + size]) for i in range(0, len(BODY), size))

    assert content == b"hello, chunked world"
    assert decoder.is_finished
    assert not decoder.has_more


def test_chunks_that_arrive_together_are_one_piece():
    assert ChunkDecoder().feed(b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n") == b"abc"


def test_a_part_of_a_chunk_is_returned_before_the_rest_comes():
    decoder = ChunkDecoder()

    assert decoder.feed(b"a\r\nhello") == b"hello"
    assert decoder.feed(b"world\r\n") == b"world"
    assert not decoder.is_finished


def test_lines_may_end_without_a_carriage_return():
    decoder = ChunkDecoder()

    assert decoder.feed(b"2\nok\n0\n\n") == b"ok"
    assert decoder.is_finished


def test_what_comes_after_the_end_is_noticed():
    decoder = ChunkDecoder()

    decoder.feed(b"0\r\n\r\nHTTP/1.1 200 OK\r\n")

    assert decoder.is_finished
    assert decoder.has_more


@pytest.mark.parametrize(
    "body",
    [
        b"\r\n", b"x\r\n", b"-1\r\n", b"+1\r\n", b"0x1\r\n", b"1_0\r\n", b" 1\r\n", b"1 1\r\n", b"1\rx\r\n",
        b"f" * 16 + b"\r\n", b"2\r\nabc\r\n", b"2\r\nab3\r\n",
    ],
)  # fmt: skip
def test_what_is_no_chunk_is_refused(body: bytes):
    with pytest.raises(BadChunks):
        ChunkDecoder().feed(body)


def n_taken(decoder: ChunkDecoder, pieces: Iterable[bytes]) -> int:
    """Feeds pieces until one is refused; returns how many bytes were taken before."""
    n_bytes = 0
    for piece in pieces:
        try:
            decoder.feed(piece)
        except BadChunks:
            return n_bytes
        n_bytes += len(piece)
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("start", [b"", b"1;", b"0\r\nName: "])
def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(start: bytes):
    assert n_taken(ChunkDecoder(), [start, *[b"1" * 100] * 1000]) < MAX_LINE + 100


def test_trailers_without_an_end_are_refused():
    assert n_taken(ChunkDecoder(), [b"0\r\n", *[b"Name: value\r\n"] * MAX_TRAILERS]) < MAX_TRAILERS + 100
