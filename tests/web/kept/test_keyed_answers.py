"""Answers that are kept under idempotency keys, by an app whose views are driven by the tests."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent
import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from corosrv.base.errors import CorosrvError, Refused
from corosrv.contracts.jobs import Chunk, Finish
from corosrv.web.http import sse
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import error_response, json_response
from corosrv.web.kept.keyed_answers import KeyedAnswers, keep_if
from tests.support.engines import TIMEOUT
from tests.support.readers import HandDrivenReader
from tests.web.http.test_sse import END, Encoder

MAX_BODY = 3 << 20


class App:
    """One route that answers with what `view` makes, and counts how often that was asked."""

    def __init__(self, **options: Any) -> None:
        bodies = BodyReader()
        self.answers = KeyedAnswers(bodies, **options)
        self.view: Callable[[], Response] = lambda: json_response(self.n_calls)
        self.bodies: list[bytes] = []
        self.n_calls = 0
        self.flask = Flask(__name__)
        self.flask.register_error_handler(CorosrvError, lambda error: error_response(error, {"error": str(error)}))

        @self.flask.post("/ask")
        @self.answers.once(MAX_BODY, ["Accept"])
        def ask() -> Response:
            self.n_calls += 1
            self.bodies.append(bodies.read(request, MAX_BODY))
            return self.view()

    def client(self) -> FlaskClient:
        return self.flask.test_client()

    def ask(self, body: bytes = b"body", key: str = "k", **headers: str) -> TestResponse:
        return self.client().post("/ask", data=body, headers={"Idempotency-Key": key, **headers}, buffered=True)


@pytest.fixture
def app() -> App:
    return App()


def streamed(reader: HandDrivenReader, encoder: Any = None) -> Response:
    return sse.response(
        sse.EventStream({}, reader, b"first", encoder or Encoder(), sse.StreamLimits(HttpStats(), -1, 5.0))
    )


def test_the_view_reads_the_body_that_was_read_for_the_digest(app: App):
    app.ask(b"the body")

    assert app.bodies == [b"the body"]


def test_a_repeated_answer_has_the_status_headers_and_body_of_the_first(app: App):
    app.view = lambda: Response([b"a", b"b"], 202, {"X-Own": "1"}, mimetype="text/plain")

    first, second = app.ask(), app.ask()

    assert (second.status_code, second.data, second.headers["X-Own"]) == (202, b"ab", "1")
    assert second.headers["Content-Type"] == first.headers["Content-Type"]
    assert second.headers["Content-Length"] == "2"
    assert (first.headers.get("Idempotency-Replayed"), second.headers["Idempotency-Replayed"]) == (None, "true")
    assert (app.n_calls, app.answers.n_replayed) == (1, 1)


def test_the_body_is_part_of_the_request_however_large(app: App):
    large = b"x" * (2 << 20)
    app.ask(large)

    assert app.ask(large).status_code == 200
    assert app.ask(large[:-1] + b"y").status_code == 422
    app.ask(b"small", "other")
    assert app.ask(b"Small", "other").status_code == 422


def test_another_query_or_header_that_counts_is_another_request(app: App):
    app.ask()

    assert app.ask(Accept="text/event-stream").status_code == 422
    assert app.client().post("/ask?a=1", data=b"body", headers={"Idempotency-Key": "k"}).status_code == 422
    assert app.ask(X_Priority="1").status_code == 200


@pytest.mark.parametrize("error", [Refused("no"), ValueError("a bug"), gevent.Timeout(1)])
def test_a_view_that_raises_leaves_the_key_free(app: App, error: BaseException):
    def fail() -> Response:
        raise error

    app.view = fail
    with suppress(gevent.Timeout):  # which no error handler answers
        app.ask()
    app.view = lambda: json_response("good")

    assert app.ask().json == "good"


@pytest.mark.parametrize("status", [302, 400, 404, 429, 500, 503])
def test_an_answer_that_is_no_success_is_not_kept(app: App, status: int):
    app.view = lambda: json_response({}, status)
    app.ask()

    app.ask()

    assert app.n_calls == 2
    assert app.answers.n_records == 0


def test_an_answer_may_say_that_it_is_not_to_be_kept(app: App):
    def view() -> Response:
        keep_if(lambda: app.n_calls > 1)
        return json_response(app.n_calls)

    app.view = view

    assert [app.ask().json for _ in range(3)] == [1, 2, 2]


def test_what_two_say_of_an_answer_both_counts(app: App):
    def view() -> Response:
        keep_if(lambda: app.n_calls > 1)
        keep_if(lambda: app.n_calls != 2)
        return json_response(app.n_calls)

    app.view = view

    assert [app.ask().json for _ in range(4)] == [1, 2, 3, 3]


@pytest.mark.parametrize("name", ["Authorization", "X-Api-Key"])
def test_where_no_keys_are_asked_for_an_answer_is_for_who_shows_the_same_credentials(app: App, name: str):
    app.ask(**{name: "one"})

    assert app.ask(**{name: "two"}).status_code == 422
    assert app.ask(**{name: "one"}).json == 1


def test_an_answer_that_is_too_large_is_not_kept_and_the_log_says_so(caplog: pytest.LogCaptureFixture):
    app = App(max_bytes=3000)
    app.view = lambda: json_response("x" * 3000)

    app.ask()
    app.ask()

    assert app.n_calls == 2
    assert "too large to be kept" in caplog.text
    assert (app.answers.n_records, app.answers.n_bytes) == (0, 0)


def test_switched_off_the_header_is_not_even_read():
    app = App(max_bytes=0)

    assert [app.ask(key="k" * 1000).json for _ in range(2)] == [1, 2]


def test_a_stream_that_ended_well_is_sent_again(app: App):
    reader = HandDrivenReader()
    reader.give(Chunk(0, "a", 1))
    reader.give(Chunk(0, "b", 1), END)
    app.view = lambda: streamed(reader)

    first, second = app.ask(), app.ask()

    assert first.data == second.data == b"firstab|"
    assert second.headers["Content-Type"] == first.headers["Content-Type"]
    assert second.headers["Cache-Control"] == "no-cache"
    assert app.n_calls == 1


def test_while_a_stream_is_sent_its_key_is_taken(app: App):
    reader = HandDrivenReader()
    app.view = lambda: streamed(reader)
    reading = gevent.spawn(app.ask)
    gevent.idle()

    early = app.ask()
    reader.give(END)
    reading.get(timeout=TIMEOUT)

    assert (early.status_code, early.headers["Retry-After"]) == (409, "1")
    assert app.ask().status_code == 200


class Broken(Encoder):
    def encode(self, chunks: list[Chunk]) -> bytes:
        raise ValueError("a bug")


@pytest.mark.parametrize(
    ("ending", "encoder"),
    [
        (CorosrvError("it broke"), Encoder),
        (Chunk(0, "", 0, Finish.CANCELLED), Encoder),
        (END, Broken),
    ],
)
def test_a_stream_that_broke_off_leaves_the_key_free(app: App, ending: Any, encoder: Callable[[], Encoder]):
    reader = HandDrivenReader()
    app.view = lambda: streamed(reader, encoder())
    reader.fail(ending) if isinstance(ending, CorosrvError) else reader.give(ending)
    with suppress(ValueError):
        app.ask()
    app.view = lambda: json_response("good")

    assert app.ask().json == "good"


def test_a_stream_that_nobody_closes_leaves_the_key_free(app: App):
    lost: list[Any] = []
    app.flask.after_request(lambda response: lost.pop())  # as a hook of the user's that breaks down
    app.flask.logger.disabled = True  # its records would keep the stream alive
    app.view = lambda: streamed(HandDrivenReader())

    assert app.ask().status_code == 500
    gc.collect()
    app.flask.after_request_funcs.clear()
    app.view = lambda: json_response("good")

    assert app.ask().json == "good"


def test_a_stream_too_large_to_be_kept_is_sent_all_the_same():
    app = App(max_bytes=2000)
    readers = [HandDrivenReader(), HandDrivenReader()]
    for reader in readers:
        for _ in range(20):
            reader.give(Chunk(0, "x" * 100, 1))
        reader.give(END)
    app.view = lambda: streamed(readers.pop())

    answers = [app.ask().data for _ in range(2)]

    assert {len(answer) for answer in answers} == {5 + 2000}
    assert app.answers.n_bytes == 0


def test_many_keys_take_no_more_than_there_is_room():
    app = App(max_bytes=100_000)
    app.view = lambda: Response(hashlib.sha512(str(app.n_calls).encode()).digest())

    for number in range(1000):
        app.ask(key=f"{number}")

    assert 50_000 < app.answers.n_bytes <= 100_000
    assert app.answers.n_records < 100
