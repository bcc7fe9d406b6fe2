"""Answers that two servers share in a real Redis, by apps whose views are driven by the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Response

from corosrv.base.errors import Refused
from corosrv.fleet.cluster.connection import RedisClient
from corosrv.fleet.cluster.key_records import KeyRecords
from corosrv.fleet.cluster.namespace import KeyNames
from corosrv.web.http.reply import json_response
from tests.support.redis_server import redis_server
from tests.web.kept.test_keyed_answers import App

NAMES = KeyNames("test")
RECORD = NAMES.name("record", "", "k")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with redis_server() as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[RedisClient]:
    client = RedisClient(url, timeout=5)
    client.execute("FLUSHALL")
    yield client
    client.close()


class SharingApp(App):
    """One server of several."""

    def __init__(self, client: RedisClient) -> None:
        super().__init__()
        self.records = KeyRecords(client, NAMES, 1 << 20, 3600)
        self.answers.share(self.records)


@pytest.fixture
def a(client: RedisClient) -> SharingApp:
    return SharingApp(client)


@pytest.fixture
def b(client: RedisClient) -> SharingApp:
    return SharingApp(client)


def test_an_answer_of_one_server_is_given_by_the_other_as_it_was(a: SharingApp, b: SharingApp):
    a.view = lambda: Response([b"a", b"\xff"], 202, {"X-Own": "1"}, mimetype="text/plain")
    first = a.ask()
    a.records.write()

    second = b.ask()

    assert (second.status_code, second.data, second.headers["X-Own"]) == (202, b"a\xff", "1")
    assert second.headers["Content-Type"] == first.headers["Content-Type"]
    assert second.headers["Idempotency-Replayed"] == "true"
    assert (b.n_calls, b.answers.n_replayed) == (0, 1)
    assert b.ask().data == b"a\xff"  # the key was not left as one that runs


def test_another_body_is_refused_by_the_other_server(a: SharingApp, b: SharingApp):
    a.ask(b"body")
    a.records.write()

    assert b.ask(b"other").status_code == 422
    assert b.ask(b"body").status_code == 200


def test_while_one_server_computes_the_other_says_when_to_come_back(a: SharingApp, b: SharingApp):
    answers = []

    def ask_the_other() -> Response:
        answers.append(b.ask())
        return json_response("a")

    a.view = ask_the_other
    a.ask()
    a.records.write()

    assert (answers[0].status_code, answers[0].headers["Retry-After"], b.n_calls) == (409, "1", 0)
    assert b.ask().data == a.ask().data


def test_a_request_that_failed_leaves_the_key_free_for_the_other_server(a: SharingApp, b: SharingApp):
    def fail() -> Response:
        raise Refused("no")

    a.view = fail
    a.ask()
    a.records.write()

    assert b.ask().status_code == 200
    assert b.n_calls == 1


def test_an_answer_that_cannot_be_read_is_computed_once_more(a: SharingApp, b: SharingApp, client: RedisClient):
    a.ask()
    a.records.write()
    client.execute("HSET", RECORD, "answer", b"\xc1")

    assert b.ask().status_code == 200
    assert b.n_calls == 1


def test_without_redis_each_server_has_its_own_records(url: str):
    alone = SharingApp(RedisClient("redis://127.0.0.1:1", timeout=0.2))

    first, second = alone.ask(), alone.ask()

    assert second.data == first.data
    assert second.headers["Idempotency-Replayed"] == "true"
    assert alone.n_calls == 1
