"""HTTP answers from bytes, wherever they are cut."""

from __future__ import annotations

import pytest

from corosrv.client.bench.transcript import MAX_CHUNK, MAX_HEAD, HttpAnswer, Malformed

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = (
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n6;name=value\r\npedia \r\nb\r\nin \r\nchunks\r\n0\r\n\r\n"
)
COUNTED = HEAD + b"Content-Length: 21\r\n\r\nWikipedia in \r\nchunks and what follows"


def body_of(pieces: list[bytes]) -> tuple[HttpAnswer, bytes]:
    answer = HttpAnswer()
    return answer, b"".join(answer.feed(piece) for piece in pieces)


@pytest.mark.parametrize("sent", [CHUNKED, COUNTED], ids=["chunked", "counted"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_body_is_the_same_wherever_it_is_cut(sent, size):
    answer, body = body_of([sent[i : i + size] for i in range(0, len(sent), size)])

    assert (answer.status, answer.is_complete) == (200, True)
    assert body == b"Wikipedia in \r\nchunks"


def test_what_follows_a_counted_body_is_left_out():
    _, body = body_of([COUNTED])

    assert len(body) == 21


def test_without_a_length_the_end_of_the_connection_ends_the_body():
    answer, body = body_of([HEAD + b"\r\n", b"all of ", b"it"])

    assert (body, answer.is_complete) == (b"all of it", False)
    assert answer.end()


@pytest.mark.parametrize("sent", [b"", HEAD, CHUNKED[:-9], COUNTED[:-25]], ids=["none", "head", "chunked", "counted"])
def test_an_answer_that_is_cut_off_has_no_proper_end(sent):
    answer, _ = body_of([sent])

    assert not answer.end()


def test_an_empty_body_is_complete_with_its_head():
    answer, body = body_of([HEAD + b"Content-Length: 0\r\n\r\n"])

    assert (body, answer.is_complete) == (b"", True)


def test_an_interim_answer_is_passed_over():
    answer, body = body_of([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"])

    assert (answer.status, body) == (404, b"no")


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"x" * (MAX_HEAD + 1),
        HEAD + b"Content-Length: many\r\n\r\n",
        HEAD + b"Content-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-4\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%X\r\n" % (MAX_CHUNK + 1),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nlong\r\n",
    ],
)
def test_what_is_no_answer_is_refused(sent):
    with pytest.raises(Malformed):
        body_of([sent])
