"""Answers that are made when they are read, and what is counted until then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Response

from corosrv.errors import CorosrvError, WorkerLost
from corosrv.http.body_budget import BodyBudget, BodyShare
from corosrv.http.late import LateBody, RequestAccount
from corosrv.http.metrics import HttpStats, exposition


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
    assert b'corosrv_http_requests_total{route="/letter",status="201"} 1.0' in exposition(stats)


def test_an_error_is_answered_in_its_form(account: RequestAccount, stats: HttpStats):
    begun: list[tuple[str, dict[str, str]]] = []
    letter = Letter(WorkerLost("lost"))

    assert read(LateBody(letter, [], lambda status, headers: begun.append((status, {})), account), begun) == b"lost"

    assert begun == [("502 BAD GATEWAY", {})]
    assert b'status="502"} 1.0' in exposition(stats)


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
