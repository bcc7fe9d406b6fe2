"""One answer, from reads to an outcome."""

from __future__ import annotations

import pytest

from corosrv.client.bench.target import FailureKind, RequestOutcome
from corosrv.client.bench.transcript import Transcript
from tests.client.bench.streams import DONE, HEAD, delta, error, event, usage, whole


def read(*pieces: bytes, asked: int = 4, is_closed: bool = True) -> RequestOutcome:
    """The outcome when a read brings one piece each second, and then the end of the connection."""
    transcript = Transcript(asked)
    reads = [*pieces, b""] if is_closed else list(pieces)
    for second, piece in enumerate(reads):
        if transcript.feed(piece, float(second)):
            return transcript.outcome(-0.5, float(second))
    raise AssertionError("it is not over")


def kind(outcome: RequestOutcome) -> FailureKind | None:
    return outcome.failure.kind if outcome.failure else None


def test_a_whole_stream_is_over_with_its_done():
    outcome = read(HEAD, delta("a"), delta("b"), delta("c") + delta("d"), delta(finish="length"), usage(4), DONE + b"x")

    assert outcome.failure is None
    assert (outcome.tokens, outcome.prompt_tokens, outcome.events) == (4, 9, 4)
    assert (outcome.is_counted_by_usage, outcome.finish) == (True, "length")
    assert (outcome.ttft, outcome.total) == (1.5, 6.5)


def test_events_that_come_together_are_one_arrival():
    outcome = read(HEAD, delta("a"), delta("b") + delta("c"), delta(finish="stop"), DONE)

    assert list(outcome.arrivals) == [1.0, 2.0]


@pytest.mark.parametrize("first", [delta(), delta(""), delta(role="assistant"), b": ping\n\n"])
def test_what_brings_no_text_is_no_arrival(first):
    outcome = read(HEAD, first, delta("a"), delta(finish="stop"), DONE)

    assert outcome.ttft == 2.5


@pytest.mark.parametrize(
    "text",
    [
        delta("a"),
        delta(reasoning_content="hm"),
        delta(reasoning="hm"),
        delta(tool_calls=[{"index": 0}]),
        event(choices=[{"text": "a"}]),
    ],
)
def test_text_goes_by_several_names(text):
    assert read(HEAD, text, delta(finish="stop"), DONE).events == 1


def test_without_a_usage_events_are_counted():
    outcome = read(HEAD, delta("a"), delta("b"), delta(finish="stop"), DONE)

    assert (outcome.tokens, outcome.is_counted_by_usage) == (2, False)


def test_a_stream_may_end_with_the_connection():
    assert read(HEAD, delta("a"), delta(finish="stop")).failure is None


def test_a_stop_may_come_early():
    assert read(HEAD, delta("a", finish="stop"), usage(1), DONE).failure is None


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([], FailureKind.CONNECTION),
        ([HEAD[:30]], FailureKind.CONNECTION),
        ([HEAD.replace(b"Connection", b"Content-Length: 999\r\nConnection"), delta("a")], FailureKind.CONNECTION),
        ([HEAD, delta("a"), DONE], FailureKind.CUT),
        ([HEAD, delta("a")], FailureKind.CUT),
        ([HEAD, b'{"choices": []}'], FailureKind.CUT),
        ([HEAD, delta("a"), delta(finish="length"), usage(3), DONE], FailureKind.SHORT),
        ([HEAD, event(error={"message": "out of memory"})], FailureKind.ERROR),
        ([HEAD, b"data: {oops\n\n"], FailureKind.MALFORMED),
        ([HEAD, b'data: {"choices": 7}\n\n'], FailureKind.MALFORMED),
        ([b"SMTP\r\n\r\n"], FailureKind.MALFORMED),
    ],
)
def test_what_is_wrong_has_its_kind(pieces, expected):
    assert kind(read(*pieces)) is expected


def test_a_status_tells_itself_and_the_server_s_words():
    failure = read(error(500, "out of memory"), is_closed=False).failure

    assert failure is not None
    assert (failure.label, failure.detail) == ("HTTP 500", "out of memory")


def test_a_status_without_json_tells_its_body():
    failure = read(b"HTTP/1.1 502 Bad\r\n\r\n", b"<h1>no", b"</h1>").failure

    assert failure is not None
    assert (failure.label, failure.detail) == ("HTTP 502", "<h1>no</h1>")


def test_an_error_event_of_null_is_none():
    sent = event(choices=[{"delta": {"content": "a"}, "finish_reason": "stop"}], error=None)

    assert read(HEAD, sent, DONE).failure is None


def test_the_first_failure_counts():
    transcript = Transcript(4)
    transcript.fail(FailureKind.TIMEOUT, "first")
    transcript.fail(FailureKind.CONNECTION, "second")

    assert kind(transcript.outcome(0, 1)) is FailureKind.TIMEOUT


def test_one_read_may_hold_all_of_it():
    outcome = read(whole(tokens=4), is_closed=False)

    assert (outcome.failure, outcome.tokens, len(outcome.arrivals)) == (None, 4, 1)
