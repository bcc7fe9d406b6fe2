"""What header fields ask for."""

import pytest
from werkzeug.datastructures import Headers

from corosrv.dialects.predictions import parse


@pytest.mark.parametrize(
    "prefer",
    [
        "respond-async",
        "Respond-Async",
        "wait=10, respond-async",
        "respond-async; x=1, y",
        'respond-async=""',
        'a="1,2",respond-async',
    ],
)
def test_answers_at_once_are_asked_for_by_name(prefer):
    assert parse.wants_async(prefer)


@pytest.mark.parametrize(
    "prefer", ["", "wait=10", "respond-asynchronously", 'a="x, respond-async"', "b; respond-async"]
)
def test_nothing_else_asks_for_answers_at_once(prefer):
    assert not parse.wants_async(prefer)


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream",
        "Text/Event-Stream; charset=utf-8",
        "text/event-stream, application/json",
        "text/event-stream;q=0.5, application/json;q=0.5",
        "text/event-stream;q=0.9, */*;q=0.1",
        "text/event-stream;q=0.1, text/html",
        "application/json;q=0, text/event-stream;q=0.1",
    ],
)
def test_streams_are_asked_for_by_name(accept):
    assert parse.wants_stream(accept)


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "text/*", "application/json", "text/event-stream;q=0", "text/event-stream;q=0.5, application/json"],
)
def test_nothing_else_asks_for_streams(accept):
    assert not parse.wants_stream(accept)


@pytest.mark.parametrize("kind", ["application/json", "APPLICATION/JSON; charset=latin-1", "application/ld+json"])
def test_bodies_are_read_under_types_of_json(kind):
    assert parse.is_json(kind)


@pytest.mark.parametrize(
    "kind", ["text/json", "application/jsonx", "text/plain", "image/svg+json", "application/+jsonp"]
)
def test_bodies_are_not_read_under_others(kind):
    assert not parse.is_json(kind)


def test_a_trace_is_passed_on_and_none_is_made_up():
    fields = Headers({"Traceparent": "00-a-b-01", "X-Other": "1"})

    assert parse.trace_headers(fields) == {"traceparent": "00-a-b-01"}
    assert parse.trace_headers(Headers()) == {}


@pytest.mark.parametrize(
    ("sent", "number"), [("7", 7), ("0", 0), ("", None), ("-1", None), ("x", None), ("9" * 30, None)]
)
def test_the_last_event_is_a_number(sent, number):
    assert parse.last_event_id(Headers({"Last-Event-ID": sent})) == number
