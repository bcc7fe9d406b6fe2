"""Bodies of create requests, and what is wrong with them."""

from typing import Any

import pytest
from werkzeug.datastructures import Headers

from corosrv.base.errors import InvalidInput
from corosrv.dialects.predictions.parse import PredictionCall, call
from corosrv.dialects.predictions.prediction import Change

URL = "https://example.test/hook"


def parse(body: Any, path_id: str | None = None, **fields: str) -> PredictionCall:
    return call(body, 0, path_id, Headers(fields))


def places(body: Any, path_id: str | None = None) -> list[list[Any]]:
    with pytest.raises(InvalidInput) as refused:
        parse(body, path_id)
    for error in refused.value.errors:
        assert set(error) == {"loc", "msg", "type"}
    return [error["loc"] for error in refused.value.errors]


def test_an_empty_body_asks_for_everything_as_it_is_by_itself():
    assert parse({}) == PredictionCall()


def test_null_equals_absent_and_unknown_fields_are_ignored():
    body = dict.fromkeys(("id", "input", "context", "webhook", "webhook_events_filter"))

    assert parse({**body, "output": 1, "version": None}) == PredictionCall()


def test_a_full_body_is_read():
    body = {"id": "a", "input": {"x": 1}, "context": {"k": "v"}, "webhook": URL, "webhook_events_filter": ["logs"]}

    call = parse(body, None, Prefer="respond-async", traceparent="00-1")

    assert (call.id, call.input, call.context, call.is_async, call.is_put) == ("a", {"x": 1}, {"k": "v"}, True, False)
    assert call.receiver is not None
    assert (call.receiver.url, call.receiver.events) == (URL, {Change.LOGS})
    assert call.receiver.headers == {"traceparent": "00-1"}


def test_webhooks_are_of_all_events_where_nothing_else_is_said():
    call = parse({"webhook": URL, "webhook_events_filter": None})

    assert call.receiver is not None
    assert call.receiver.events == set(Change)


def test_the_paths_id_counts_as_the_bodys():
    assert parse({}, "a").id == "a"
    assert parse({"id": "a"}, "a").is_put


@pytest.mark.parametrize("body", [[], "x", 1, None, True])
def test_a_body_is_an_object(body):
    assert places(body) == [["body"]]


@pytest.mark.parametrize("id", ["", ".a", "..", "../x", "a/b", "a\0", "a b", "ä", "a" * 129, "a\n"])
def test_ids_are_words_that_are_safe_everywhere(id):
    assert places({"id": id}) == [["body", "id"]]
    if id:
        assert places({}, id) == [["path", "prediction_id"]]


@pytest.mark.parametrize("id", ["a", "A-Z_0.9~", "-", "a" * 128, "a.."])
def test_other_ids_are_taken(id):
    assert parse({"id": id}).id == id


def test_two_ids_must_match():
    with pytest.raises(InvalidInput) as refused:
        parse({"id": "a"}, "b")

    assert refused.value.errors[0]["loc"] == ["body", "id"]
    assert "must match" in refused.value.errors[0]["msg"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "x",
        "/hook",
        "ftp://h/",
        "http://",
        "http:///x",
        "file:///etc/passwd",
        "http://h:99999/",
        "http://h/a b",
        "http://h/\n",
        "//h/x",
    ],
)
def test_webhooks_go_to_absolute_http_urls(url):
    assert places({"webhook": url}) == [["body", "webhook"]]


def test_all_faults_are_told_at_once():
    body = {"id": 1, "context": {"a": 1, "b": "x"}, "webhook": 3, "webhook_events_filter": ["start", "end", 4]}

    assert places(body) == [
        ["body", "id"],
        ["body", "context", "a"],
        ["body", "webhook"],
        ["body", "webhook_events_filter", 1],
        ["body", "webhook_events_filter", 2],
    ]


def test_a_list_of_very_many_events_is_one_fault():
    assert places({"webhook_events_filter": ["x"] * 64}) == [["body", "webhook_events_filter", n] for n in range(64)]
    assert places({"webhook_events_filter": ["start"] * 100_000}) == [["body", "webhook_events_filter"]]


def test_the_input_is_not_looked_at():
    assert parse({"input": [1]}).input == [1]
