"""Streams over a reader that is driven by hand."""

import socket
from collections.abc import Iterator
from typing import Any

import gevent
import gevent.socket
import pytest

from corosrv.base.errors import CorosrvError, JobFailed
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.web.http import sse
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.sse import PING, EventStream, StreamLimits
from tests.support.engines import TIMEOUT
from tests.support.readers import HandDrivenReader

NEVER = -1.0
END = Chunk(0, "", 1, Finish.STOP)


@pytest.fixture
def reader() -> HandDrivenReader:
    return HandDrivenReader()


@pytest.fixture
def stats() -> HttpStats:
    return HttpStats()


class Encoder:
    """Joins texts; a cancelled task ends the stream."""

    failure: CorosrvError | None = None

    def encode(self, chunks: list[Chunk]) -> bytes:
        if any(chunk.finish is Finish.CANCELLED for chunk in chunks):
            self.failure = JobFailed("cancelled")
            return self.encode_error(self.failure)
        return "|".join(chunk.text for chunk in chunks).encode()

    def encode_error(self, error: CorosrvError) -> bytes:
        return f"error: {error}".encode()

    def close(self) -> None:
        self.is_closed = True


def stream(
    reader: HandDrivenReader, stats: HttpStats, ping_interval: float = NEVER, environ: dict[str, Any] | None = None
) -> EventStream:
    return EventStream(environ or {}, reader, b"first", Encoder(), StreamLimits(stats, ping_interval, 5.0))


def open_streams(stats: HttpStats) -> float | None:
    return stats.registry.get_sample_value("corosrv_open_streams")


@pytest.fixture
def pair() -> Iterator[tuple[gevent.socket.socket, socket.socket]]:
    """The server's end of a connection, and the client's."""
    mine, theirs = socket.socketpair()
    server = gevent.socket.socket(fileno=mine.detach())
    with server, theirs:
        yield server, theirs


def test_the_first_bytes_wait_for_no_chunk(reader, stats):
    assert next(iter(stream(reader, stats))) == b"first"


def test_chunks_that_were_unread_together_are_one_piece(reader, stats):
    reader.give(Chunk(0, "a", 1), Chunk(0, "b", 1))
    reader.give(Chunk(0, "c", 1), END)

    assert list(stream(reader, stats)) == [b"first", b"a|b", b"c|"]


def test_silence_is_filled_with_comments(reader, stats):
    pieces = iter(stream(reader, stats, ping_interval=0.01))

    assert [next(pieces) for _ in range(3)] == [b"first", PING, PING]


def test_a_stream_goes_on_after_a_comment(reader, stats):
    pieces = iter(stream(reader, stats, ping_interval=0.01))
    assert [next(pieces), next(pieces)] == [b"first", PING]

    reader.give(END)

    assert list(pieces) == [b""]


def test_without_an_interval_there_are_no_comments(reader, stats):
    reading = gevent.spawn(list, stream(reader, stats, ping_interval=NEVER))
    gevent.sleep(0.03)

    reader.give(END)

    assert PING not in reading.get(timeout=TIMEOUT)


def test_an_error_is_the_last_piece(reader, stats):
    reader.give(Chunk(0, "a", 1))
    reader.fail(CorosrvError("it broke"))

    assert list(stream(reader, stats)) == [b"first", b"a", b"error: it broke"]


def test_a_failure_found_by_the_encoder_is_the_last_piece(reader, stats):
    reader.give(Chunk(0, "", 0, Finish.CANCELLED))
    reader.give(Chunk(1, "of another task", 1))

    assert list(stream(reader, stats)) == [b"first", b"error: cancelled"]


def test_closing_ends_the_job_and_the_count_once(reader, stats):
    streaming = stream(reader, stats)
    assert open_streams(stats) == 1

    streaming.close()
    streaming.close()

    assert reader.n_closed == 1
    assert open_streams(stats) == 0


def test_a_stream_that_was_never_read_is_closed_like_any_other(reader, stats):
    answer = sse.response(stream(reader, stats))

    answer.close()

    assert reader.n_closed == 1


def test_the_client_s_leaving_cancels_the_job(reader, stats, pair):
    server, client = pair
    streaming = stream(reader, stats, environ={"gunicorn.socket": server})
    reading = gevent.spawn(list, streaming)
    gevent.idle()

    client.close()

    reading.get(timeout=TIMEOUT)
    assert reader.is_cancelled
    streaming.close()


def test_the_socket_has_a_time_out_only_while_it_streams(reader, stats, pair):
    server, _ = pair
    streaming = stream(reader, stats, environ={"gunicorn.socket": server})

    next(iter(streaming))
    assert server.gettimeout() == 5.0
    streaming.close()

    assert server.gettimeout() is None


def test_no_one_may_keep_or_change_a_stream_on_its_way(reader, stats):
    answer = sse.response(stream(reader, stats))

    assert answer.mimetype == "text/event-stream"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert answer.headers["X-Accel-Buffering"] == "no"
    assert "Content-Length" not in answer.headers


# Answers that are not streamed.


def test_many_streams_that_fail_at_once_are_few_lines_of_log(stats, caplog):
    for number in range(50):
        reader = HandDrivenReader()
        reader.fail(CorosrvError(f"failed\nwith number {number}"))
        assert list(stream(reader, stats))[-1].startswith(b"error: failed")

    assert len(caplog.records) <= 2
    assert all("\n" not in record.getMessage() for record in caplog.records)
