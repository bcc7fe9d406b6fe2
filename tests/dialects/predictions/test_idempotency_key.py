"""Predictions that are repeated with an Idempotency-Key, over real HTTP."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.support.predictors import ASYNC, PREDICTIONS, STREAM, PredictorServer, parse_events, serving_predictor

_numbers = itertools.count()


@pytest.fixture
def key() -> dict[str, str]:
    return {"Idempotency-Key": f"prediction-{next(_numbers)}"}


def n_runs(tasks: PredictorServer) -> int:
    metrics = tasks.predict({}).json["metrics"]
    return int(metrics["runs"]["total"])


@pytest.mark.parametrize("how", [{}, ASYNC], ids=["whole", "async"])
def test_a_repeated_prediction_runs_once_and_gets_the_same_answer(tasks: PredictorServer, key, how):
    first = tasks.predict({"text": "a"}, {**key, **how})
    tasks.wait_idle()
    n_before = n_runs(tasks)

    second = tasks.predict({"text": "a"}, {**key, **how})

    assert first.status == second.status == (202 if how is ASYNC else 200)
    assert second.body == first.body
    assert second.headers["content-type"] == first.headers["content-type"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert n_runs(tasks) == n_before + 1


def test_a_repeated_stream_of_events_is_sent_again_but_for_its_comments(streams: PredictorServer, key):
    first = streams.predict({"seconds": 0.5, "n": 2}, {**key, **STREAM})

    second = streams.predict({"seconds": 0.5, "n": 2}, {**key, **STREAM})

    events = [event for event in first.body.split(b"\n\n") if not event.startswith(b":")]
    assert b": ping" in first.body or b":\n\n" in first.body
    assert second.body.split(b"\n\n") == events
    assert second.headers["idempotency-replayed"] == "true"


def test_another_input_or_form_of_answer_is_another_request(tasks: PredictorServer, key):
    tasks.predict({"text": "a"}, key)

    statuses = [tasks.predict({"text": "b"}, key).status, tasks.predict({"text": "a"}, {**key, **STREAM}).status]

    assert statuses == [422, 422]


def test_a_prediction_that_failed_runs_again(tasks: PredictorServer, key):
    first = tasks.predict({"fails": True}, key)

    second = tasks.predict({"fails": True}, key)

    assert first.json["status"] == "failed"
    assert first.json["id"] != second.json["id"]


def test_a_stream_of_a_prediction_that_failed_runs_again(streams: PredictorServer, key):
    first = streams.predict({"fails": True}, {**key, **STREAM})

    second = streams.predict({"fails": True}, {**key, **STREAM})

    assert b"miscounted" in first.body
    assert "idempotency-replayed" not in second.headers


def test_a_client_that_leaves_its_stream_and_comes_back_reads_it_on(streams: PredictorServer, key):
    gate = streams.gate("key-leaving")
    with streams.begin({"gate": str(gate)}, {**key, **STREAM}) as leaving:
        leaving.head()
    gate.open()

    answer = streams.predict({"gate": str(gate)}, {**key, **STREAM})

    assert (answer.status, answer.headers["idempotency-replayed"]) == (200, "true")
    assert [event["id"] for event in parse_events(answer.body)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_client_that_stays_away_from_its_stream_leaves_its_key_free(tmp_path: Path, key):
    with serving_predictor(tmp_path, "streams.py:Predictor", resume_s=0.3) as streams:
        gate = streams.gate("key-leaving")
        with streams.begin({"gate": str(gate)}, {**key, **STREAM}) as leaving:
            leaving.head()
        streams.wait_idle()
        gate.open()

        answer = streams.predict({"gate": str(gate)}, {**key, **STREAM})

    assert answer.status == 200
    assert "idempotency-replayed" not in answer.headers


def test_a_prediction_that_was_canceled_runs_again(tasks: PredictorServer, key):
    gate = tasks.gate("key-canceled")
    with tasks.begin({"gate": str(gate)}, key, id="to-be-canceled") as waiting:
        tasks.wait_for("to-be-canceled", "processing")
        tasks.cancel("to-be-canceled")
        first = waiting.answer()
    gate.open()
    tasks.wait_idle()

    second = tasks.ask("POST", PREDICTIONS, {"input": {"gate": str(gate)}, "id": "to-be-canceled"}, key)

    assert first.json["status"] == "canceled"
    assert "idempotency-replayed" not in second.headers


def test_while_it_runs_others_are_told_to_come_back(tasks: PredictorServer, key):
    gate = tasks.gate("key-running")
    with tasks.begin({"gate": str(gate)}, key, id="the-first") as waiting:
        tasks.wait_for("the-first", "processing")
        with tasks.begin({"gate": str(gate)}, key, id="the-first") as repeating:
            second = repeating.answer()
        gate.open()
        first = waiting.answer()

    with tasks.begin({"gate": str(gate)}, key, id="the-first") as repeating:
        third = repeating.answer()

    assert (second.status, second.headers["retry-after"]) == (409, "1")
    assert first.json["status"] == "succeeded"
    assert third.body == first.body
    assert third.headers["idempotency-replayed"] == "true"


def test_a_worker_that_dies_leaves_the_key_free(tmp_path: Path, key):
    with serving_predictor(tmp_path, "tasks.py:Predictor") as server:
        answers = [server.predict({"exits": 3}, key) for _ in range(2)]

    assert all("idempotency-replayed" not in answer.headers for answer in answers)
    assert answers[1].status != 409
