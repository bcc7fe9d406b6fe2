"""Requests with an Idempotency-Key, over HTTP."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from corosrv.base.errors import HandlerFailed
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.host import CallListener, HandedCall, Permit
from tests.dialects.kserve.app import make_app
from tests.workers.dispatch.hosts import FakeCall, FakeHost, card, outputs, text


class CountingHost(FakeHost):
    """Answers each call at once, with the number of calls so far; `fails` fails, and `tell` does so as a stream."""

    def start_call(self, permit: Permit, call: HandedCall, listener: CallListener) -> FakeCall:
        running = super().start_call(permit, call, listener)
        number = b"%d" % self.n_started
        match self.handlers[call.handler].name:
            case "fails":
                running.fail(HandlerFailed("the handler failed"))
            case "tell":
                running.send(outputs(text("text_output", b"number ")))
                running.finish(outputs(text("text_output", number)))
            case _:
                running.finish(outputs(text("count", number)))
        return running


CARDS = [card("count"), card("fails"), card("tell", is_stream=True)]


@pytest.fixture
def client() -> FlaskClient:
    dispatcher = Dispatcher()
    dispatcher.add_host(CountingHost("p/0", CARDS))
    return make_app(dispatcher).test_client()


def infer(client: FlaskClient, key: str | None = "k", **body: object):
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v2/models/count/infer", json={"inputs": [], **body}, headers=headers)


def test_a_repeated_request_gets_the_answer_of_the_first(client: FlaskClient):
    first = infer(client)

    second = infer(client)

    assert second.json == first.json
    assert second.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert infer(client, None).json["outputs"][0]["data"] == ["2"]


def test_another_request_with_the_same_key_is_unprocessable(client: FlaskClient):
    infer(client)

    refusal = infer(client, parameters={"a": 1})

    assert refusal.status_code == 422
    assert "Idempotency-Key" in refusal.json["error"]


def test_a_key_that_is_too_long_is_refused(client: FlaskClient):
    assert infer(client, "k" * 256).status_code == 400


def test_a_failure_that_is_repeated_says_so(client: FlaskClient):
    first, second = (
        client.post("/v2/models/fails/infer", json={"inputs": []}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )

    assert first.status_code == second.status_code == 500
    assert second.json == first.json
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("how", ["generate", "generate_stream"])
def test_a_text_is_repeated_as_it_was_generated(client: FlaskClient, how: str):
    first, second, third = (
        client.post(f"/v2/models/tell/{how}", json={"text_input": "a"}, headers={"Idempotency-Key": key})
        for key in ("k", "k", "another")
    )

    assert first.status_code == 200
    assert b"number " in first.data
    assert second.data == first.data
    assert third.data == first.data.replace(b"1", b"2")
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
