"""Answers that are made when they are read, and what is counted until then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask, Response, request
from prometheus_client import generate_latest

from corosrv.base.errors import CorosrvError, WorkerLost
from corosrv.web.http.heap import BodyBudget, BodyShare
from corosrv.web.http.lean_flask import LeanFlask, current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.reply import PARKS, LateBody, LateResponse, RequestAccount, respond


class Letter:
    """An answer that is there, or an error in its place."""

    def __init__(self, error: CorosrvError | None = None) -> None:
        self.error = error
        self.n_closes = 0

    def on_ready(self, listener: Callable[[], None]) -> bool:
        return False

    def answer(self) -> Response:
        if self.error is not None:
            raise self.error
        return Response([b"a", b"b"], 201, content_type="text/x-letter")

    def answer_error(self, error: CorosrvError) -> Response:
        return Response(str(error), error.status)

    def close(self) -> None:
        self.n_closes += 1


@pytest.fixture
def stats() -> HttpStats:
    return HttpStats()


@pytest.fixture
def budget() -> BodyBudget:
    return BodyBudget(100)


@pytest.fixture
def account(stats: HttpStats, budget: BodyBudget) -> RequestAccount:
    stats.begin_work()
    share = BodyShare(budget)
    share.grow(60)
    return RequestAccount(stats, "/letter", share)


def read(body: LateBody, begun: list[tuple[str, dict[str, str]]]) -> bytes:
    assert begun == [], "the status was said before the body was read"
    return b"".join(body)


def test_the_status_and_headers_are_said_when_the_body_is_read(account: RequestAccount, stats: HttpStats):
    begun: list[tuple[str, dict[str, str]]] = []
    body = LateBody(Letter(), [("X-Late", "1")], lambda status, headers: begun.append((status, dict(headers))), account)

    assert read(body, begun) == b"ab"

    ((status, headers),) = begun
    assert (status, headers["X-Late"], headers["Content-Type"]) == ("201 CREATED", "1", "text/x-letter")
    assert b'corosrv_http_requests_total{route="/letter",status="201"} 1.0' in generate_latest(stats.registry)


def test_an_error_is_answered_in_its_form(account: RequestAccount, stats: HttpStats):
    begun: list[tuple[str, dict[str, str]]] = []
    letter = Letter(WorkerLost("lost"))

    assert read(LateBody(letter, [], lambda status, headers: begun.append((status, {})), account), begun) == b"lost"

    assert begun == [("502 BAD GATEWAY", {})]
    assert b'status="502"} 1.0' in generate_latest(stats.registry)


def test_closing_ends_the_wait_the_work_and_the_share_of_the_body_once(
    account: RequestAccount, stats: HttpStats, budget: BodyBudget
):
    letter = Letter()
    body = LateBody(letter, [], lambda status, headers: None, account)
    assert budget.n_bytes == 60

    body.close()
    body.close()

    assert letter.n_closes == 2
    assert budget.n_bytes == 0
    assert stats._n_busy == 0


# Whether an answer is late.


def answer_to(app: Flask, letter: Letter, environ: dict[str, bool]) -> Response:
    """Returns what a view of this application gives for the letter. Raises what the letter does."""
    with app.test_request_context("/letter", environ_overrides=environ):
        return respond(current(request), letter)


def test_a_server_that_parks_requests_gets_the_answer_later():
    letter = Letter()

    answer = answer_to(LeanFlask("lean"), letter, {PARKS: True})

    assert isinstance(answer, LateResponse)
    assert letter.n_closes == 0, "nobody has read the answer"


@pytest.mark.parametrize(
    ("app", "environ"),
    [(LeanFlask("lean"), {}), (Flask("other"), {PARKS: True})],
    ids=["a server that parks nothing", "an app of somebody else's"],
)
def test_others_get_the_answer_at_once_and_what_it_waited_for_is_closed(app: Flask, environ: dict[str, bool]):
    letter = Letter()

    answer = answer_to(app, letter, environ)

    assert (answer.status_code, answer.data, letter.n_closes) == (201, b"ab", 1)


def test_an_error_at_once_closes_what_the_answer_waited_for():
    letter = Letter(WorkerLost("lost"))

    with pytest.raises(WorkerLost):
        answer_to(LeanFlask("lean"), letter, {})

    assert letter.n_closes == 1


def test_a_late_answer_has_the_headers_of_hooks_and_its_own_type_and_length_alone():
    late = LateResponse(Letter())
    late.headers["X-Hook"] = "1"
    late.headers["Content-Length"] = "0"
    begun: list[list[tuple[str, str]]] = []

    body = late({}, lambda status, headers: begun.append(headers))

    assert b"".join(body) == b"ab"
    (headers,) = begun
    assert sorted(headers) == [("Content-Type", "text/x-letter"), ("X-Hook", "1")]
