"""The endpoints over real HTTP, with a real predictor in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.serve.wire import request
from tests.support.predictors import ASYNC, PREDICTIONS, STREAM, PredictorServer, serving_predictor
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

JSON = "application/json"
ALWAYS = {"id", "status", "logs", "metrics"}
MOMENTS = {"created_at", "started_at", "completed_at"}


@pytest.fixture(autouse=True)
def idle(tasks: PredictorServer) -> Iterator[None]:
    yield
    tasks.wait_idle()


# What there is


def test_the_index_lists_what_answers(tasks: PredictorServer):
    index = tasks.ask("GET", "/").json

    assert index.pop("cog_version")
    assert index == {
        "docs_url": "/docs",
        "openapi_url": "/openapi.json",
        "shutdown_url": "/shutdown",
        "healthcheck_url": "/health-check",
        "predictions_url": "/predictions",
        "predictions_idempotent_url": "/predictions/{prediction_id}",
        "predictions_cancel_url": "/predictions/{prediction_id}/cancel",
    }


def test_health_tells_setup_versions_and_slots(tasks: PredictorServer):
    health = tasks.health()

    assert (health["status"], health["slots"]) == ("READY", {"total": 1, "busy": 0, "poisoned": 0})
    assert (health["setup"]["status"], health["setup"]["logs"]) == ("succeeded", "ready to serve\n")
    assert datetime.fromisoformat(health["setup"]["started_at"]) < datetime.fromisoformat(
        health["setup"]["completed_at"]
    )
    assert {"corosrv", "python"} <= set(health["version"])
    assert "user_healthcheck_error" not in health


def test_the_users_own_check_makes_it_unhealthy_and_nothing_else(tasks: PredictorServer):
    sick = tasks.folder / "sick"
    sick.touch()
    health = tasks.health()
    answer = tasks.predict({})
    sick.unlink()

    assert health["status"] == "UNHEALTHY"
    assert health["user_healthcheck_error"]
    assert answer.json["status"] == "succeeded"
    assert tasks.health()["status"] == "READY"


def test_the_document_describes_this_predictor(tasks: PredictorServer):
    document = tasks.ask("GET", "/openapi.json")

    assert document.status == 200
    assert document.json["openapi"].startswith("3.0")
    assert list(document.json["components"]["schemas"]["Input"]["properties"])[:2] == ["text", "prints"]


@pytest.mark.parametrize("path", ["/nothing", "/trainings", "/predictions/a/b"])
def test_unknown_paths_are_told_in_json(tasks: PredictorServer, path: str):
    answer = tasks.ask("GET", path)

    assert answer.status == 404
    assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/predictions", "POST"),
        ("PATCH", "/predictions/a", "DELETE"),
        ("DELETE", "/predictions/a/cancel", "POST"),
        ("GET", "/predictions/a/cancel", "PUT"),
        ("GET", "/shutdown", "POST"),
        ("POST", "/health-check", "GET"),
    ],
)
def test_other_methods_are_told_which_are_allowed(tasks: PredictorServer, method: str, path: str, allowed: str):
    answer = tasks.ask(method, path)

    assert answer.status == 405
    assert allowed in answer.headers["allow"]
    assert set(answer.json) == {"error"}


# Results


def test_a_prediction_is_answered_with_its_object(tasks: PredictorServer):
    answer = tasks.predict({"text": "hi", "prints": "noted"})

    assert answer.status == 200
    assert set(answer.json) == ALWAYS | MOMENTS | {"output"}
    assert (answer.json["status"], answer.json["output"], answer.json["logs"]) == ("succeeded", "hi", "noted\n")
    assert answer.json["metrics"]["predict_time"] >= 0
    assert answer.json["metrics"]["runs"]["total"] >= 1
    moments = [datetime.fromisoformat(answer.json[name]) for name in ("created_at", "started_at", "completed_at")]
    assert moments == sorted(moments)
    assert all(answer.json[name].endswith("Z") and len(answer.json[name]) == 27 for name in MOMENTS)


def test_an_output_of_nothing_is_shown(tasks: PredictorServer):
    answer = tasks.predict({"text": "nothing"})

    assert answer.json["output"] is None


def test_a_failure_is_data_and_keeps_its_logs(tasks: PredictorServer):
    answer = tasks.predict({"text": "way", "prints": "trying", "fails": True})

    assert answer.status == 200
    assert (answer.json["status"], answer.json["error"]) == ("failed", "ValueError: no way")
    assert answer.json["logs"].startswith("trying\n")
    assert answer.json["metrics"].keys() == {"runs", "predict_time"}
    assert "output" not in answer.json


def test_the_context_reaches_the_predictor_and_nobody_else(tasks: PredictorServer):
    answer = tasks.predict({"text": "context"}, id="ctx", context={"k": "v"})

    assert answer.json["output"] == {"k": "v"}
    assert "context" not in tasks.get("ctx").json


def test_an_answer_at_once_says_that_it_starts(tasks: PredictorServer):
    gate = tasks.gate("async")
    answer = tasks.predict({"gate": str(gate)}, {"Prefer": "wait=5, Respond-Async;x=1"})

    assert answer.status == 202
    assert answer.json["status"] == "starting"
    running = tasks.wait_for(answer.json["id"], "processing")
    gate.open()

    assert running["input"]["gate"] == str(gate)
    assert running["input"]["text"] == "hello"
    assert tasks.wait_for(answer.json["id"], "succeeded")["output"] == "hello"


def test_ids_are_made_where_none_is_given(tasks: PredictorServer):
    ids = {tasks.predict({}).json["id"] for _ in range(5)}

    assert len(ids) == 5
    assert all(len(id) == 26 and id.isalnum() and id.islower() for id in ids)


def test_what_was_forgotten_or_never_known_is_not_found(tasks: PredictorServer):
    answer = tasks.get("never")

    assert answer.status == 404
    assert set(answer.json) == {"error"}


def test_data_urls_are_files_for_the_predictor(tasks: PredictorServer):
    answer = tasks.predict({"text": "file", "file": "data:text/plain;base64,aGk="})

    assert answer.json["output"] == "hi"


def test_secrets_are_never_shown(tasks: PredictorServer):
    tasks.put("secretive", {"key": "swordfish"}, ASYNC)
    tasks.wait_for("secretive", "succeeded")

    answers = [tasks.get("secretive"), tasks.put("secretive", {"key": "swordfish"})]

    assert answers[0].json["input"]["key"] == "**********"
    assert not any(b"swordfish" in answer.body for answer in answers)


# Bodies


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b'{"input":{}}', "application/json", 200),
        (b'{"input":{}}', "application/json; charset=utf-8", 200),
        (b'{"input":{}}', "application/vnd.api+json", 200),
        (b'{"input":{"text":"x"}}', None, 200),
        (b"", None, 200),
        (b"{}", "text/plain", 415),
        (b"{}", "application/x-www-form-urlencoded", 415),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"nonsense", None, 400),
        (b'{"input":{"text":"\xff"}}', "application/json", 400),
        (b"[]", "application/json", 422),
        (b"null", "application/json", 422),
        (b'{"input":[]}', "application/json", 422),
        (b'{"input":null}', "application/json", 200),
        (b'{"unknown":1,"webhook":null,"id":null}', "application/json", 200),
    ],
)
def test_bodies_are_json_or_refused(tasks: PredictorServer, content: bytes, kind: str | None, status: int):
    with tasks.connect() as connection:
        answer = connection.ask("POST", PREDICTIONS, content, {} if kind is None else {"Content-Type": kind})

    assert answer.status == status
    assert answer.headers["content-type"] == JSON
    if status >= 400:
        assert set(answer.json) == ({"detail"} if status == 422 else {"error"})


def test_a_body_without_a_type_is_not_ignored(tasks: PredictorServer):
    with tasks.connect() as connection:
        answer = connection.ask("POST", PREDICTIONS, b'{"input":{"text":"read"}}')

    assert answer.json["output"] == "read"


def test_a_request_without_a_body_asks_for_defaults(tasks: PredictorServer):
    with tasks.connect() as connection:
        answer = connection.ask("POST", PREDICTIONS)

    assert answer.json["output"] == "hello"


def test_a_body_over_the_limit_is_refused_before_it_is_read(tasks: PredictorServer):
    with tasks.connect() as connection:
        head = {"Content-Type": "text/plain", "Content-Length": "200001"}
        connection.send(request("POST", PREDICTIONS, None, head))
        answer = connection.answer()

    assert answer.status == 413
    assert set(answer.json) == {"error"}


def test_a_body_that_grows_over_the_limit_is_refused(tasks: PredictorServer):
    with tasks.connect() as connection:
        connection.send(
            request("POST", PREDICTIONS, None, {"Content-Type": JSON, "Transfer-Encoding": "chunked"})
            + b"30d41\r\n"
            + b" " * 200_001
        )
        answer = connection.answer()

    assert answer.status == 413


# What is wrong with fields


def places(answer: Any) -> list[list[Any]]:
    assert answer.status == 422
    return [error["loc"] for error in answer.json["detail"]]


def test_all_faults_of_the_input_are_told_at_once(tasks: PredictorServer):
    answer = tasks.predict({"text": 1, "fails": "x", "exits": 300})

    assert places(answer) == [["body", "input", "text"], ["body", "input", "fails"], ["body", "input", "exits"]]


@pytest.mark.parametrize("id", ["../../etc/x", "a\0b", "a" * 10_000, ".hidden", "a b", ""])
def test_an_id_that_cannot_be_one_leaves_nothing_behind(tasks: PredictorServer, id: str):
    before = set(tasks.folder.parent.rglob("*"))

    answer = tasks.predict({}, id=id)

    assert places(answer) == [["body", "id"]]
    assert tasks.health()["slots"]["busy"] == 0
    assert set(tasks.folder.parent.rglob("*")) <= before  # what an earlier prediction used may go meanwhile


@pytest.mark.parametrize("id", ["..%2F..%2Fetc", "a%00b", ".hidden", "a%20b", "a/../b", "a" * 129])
def test_an_id_in_the_path_that_cannot_be_one_is_told_so(tasks: PredictorServer, id: str):
    assert places(tasks.put(id, {})) == [["path", "prediction_id"]]


def test_the_ids_of_path_and_body_must_match(tasks: PredictorServer):
    answer = tasks.ask("PUT", f"{PREDICTIONS}/a", {"id": "b"})

    assert places(answer) == [["body", "id"]]
    assert "must match" in answer.json["detail"][0]["msg"]


@pytest.mark.parametrize("url", ["nowhere", "ftp://example.test/", "file:///etc/passwd"])
def test_a_webhook_that_is_no_url_is_refused(tasks: PredictorServer, url: str):
    assert places(tasks.predict({}, webhook=url)) == [["body", "webhook"]]


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.0.1]"])
def test_a_webhook_to_a_link_local_address_is_refused(tasks: PredictorServer, host: str):
    answer = tasks.predict({}, webhook=f"http://{host}/latest/meta-data")

    assert places(answer) == [["body", "webhook"]]
    assert "link-local" in answer.json["detail"][0]["msg"]


@pytest.mark.parametrize("path", ["/etc/passwd", "file:///etc/passwd", "etc/passwd"])
def test_no_file_of_the_server_is_an_input(tasks: PredictorServer, path: str):
    answer = tasks.predict({"text": "file", "file": path})

    assert places(answer) == [["body", "input", "file"]]
    assert tasks.health()["slots"]["busy"] == 0


# Ids


def test_a_put_is_run_once_however_often_it_is_sent(tasks: PredictorServer):
    gate = tasks.gate("put")
    first = tasks.put("once", {"gate": str(gate)}, ASYNC)
    second = tasks.put("once", "not even an object")
    gate.open()
    shown = tasks.wait_for("once", "succeeded")
    third = tasks.put("once", {"gate": str(gate)})
    other = tasks.put("once", {"text": "other"})

    assert (first.status, first.json["status"]) == (202, "starting")
    assert (second.status, second.json["id"], second.json["input"]["gate"]) == (202, "once", str(gate))
    assert third.status == 200
    assert third.json | {"input": shown["input"]} == shown
    assert (other.status, other.json["status"]) == (409, "failed")
    assert "id already used" in other.json["error"]


def test_a_put_that_is_answered_twice_is_answered_the_same(tasks: PredictorServer):
    assert tasks.put("twice", {"text": "x"}).json == tasks.put("twice", {"text": "x"}).json


def test_a_post_with_a_running_id_leaves_that_one_alone(tasks: PredictorServer):
    gate = tasks.gate("post")
    tasks.predict({"gate": str(gate)}, ASYNC, id="posted")

    refused = tasks.predict({"text": "other"}, id="posted")
    gate.open()

    assert refused.status == 409
    assert "posted" in refused.json["error"]
    assert tasks.wait_for("posted", "succeeded")["output"] == "hello"
    assert tasks.predict({}, id="posted").status == 409


def test_a_full_server_refuses_at_once(tasks: PredictorServer, receiver: Receiver):
    gate = tasks.gate("full")
    tasks.predict({"gate": str(gate)}, ASYNC, id="holder")

    refused = tasks.predict({}, id="late", webhook=receiver.url)
    health = tasks.health()
    gate.open()
    tasks.wait_for("holder", "succeeded")

    assert (refused.status, refused.json["status"]) == (409, "failed")
    assert "capacity" in refused.json["error"]
    assert (health["status"], health["slots"]["busy"]) == ("BUSY", 1)
    assert tasks.get("late").status == 404
    assert not receiver.got


@pytest.mark.parametrize(
    ("input", "headers", "status"),
    [("?", STREAM, 406), ("?", {}, 422), ({}, {}, 409)],
)
def test_refusals_are_decided_in_their_order(tasks: PredictorServer, input: Any, headers: dict[str, str], status: int):
    gate = tasks.gate("order")
    id = f"order-{status}"
    tasks.predict({"gate": str(gate)}, ASYNC, id=id)

    answer = tasks.predict(input, headers, id=id)
    repeated = tasks.put(id, "?", headers)
    gate.open()
    tasks.wait_for(id, "succeeded")

    assert answer.status == status
    assert repeated.status == 202


def test_streams_that_nobody_opted_in_to_are_refused_in_json(tasks: PredictorServer):
    answer = tasks.predict({}, STREAM)

    assert answer.status == 406
    assert "streaming" in answer.json["error"]


def test_five_hundred_requests_one_after_the_other_meet_no_full_slot(tasks: PredictorServer):
    with tasks.connect() as connection:
        statuses = [connection.post({"input": {}}, PREDICTIONS, {"Content-Type": JSON}).status for _ in range(500)]

    assert statuses == [200] * 500


# Cancels


CANCELS = [
    ("POST", "/predictions/{}/cancel"),  # as Cog has it
    ("PUT", "/predictions/{}/cancel"),
    ("DELETE", "/predictions/{}"),
]


@pytest.mark.parametrize(("method", "path"), CANCELS)
def test_a_cancel_ends_what_runs(tasks: PredictorServer, method: str, path: str):
    gate, id = tasks.gate(f"never-{method}"), f"doomed-{method}"
    tasks.predict({"gate": str(gate), "prints": "begun"}, ASYNC, id=id)
    tasks.wait_for(id, "processing")

    canceled, again = (tasks.ask(method, path.format(id)) for _ in range(2))

    assert (canceled.status, canceled.json) == (200, {})
    assert (again.status, again.json) in ((200, {}), (404, {}))
    shown = tasks.wait_for(id, "canceled")
    assert "error" not in shown
    assert "completed_at" in shown


@pytest.mark.parametrize(("method", "path"), CANCELS)
def test_a_cancel_of_what_does_not_run_says_so(tasks: PredictorServer, method: str, path: str):
    tasks.predict({}, id=f"over-{method}")

    for id in (f"over-{method}", "unheard-of"):
        answer = tasks.ask(method, path.format(id))
        assert (answer.status, answer.json) == (404, {})


def test_a_cancel_answers_who_waits_for_the_result(tasks: PredictorServer):
    connection = tasks.begin({"gate": str(tasks.gate("never")), "prints": "begun"}, id="awaited")
    eventually(lambda: tasks.get("awaited").json.get("logs"))

    tasks.cancel("awaited")
    answer = connection.answer()
    connection.leave()

    assert answer.status == 200
    assert (answer.json["status"], answer.json["logs"]) == ("canceled", "begun\n")


@pytest.mark.parametrize("how", ["leave", "reset"])
def test_a_client_that_goes_away_cancels_what_it_waited_for(tasks: PredictorServer, how: str):
    connection = tasks.begin({"gate": str(tasks.gate("never"))}, id=f"left-{how}")
    tasks.wait_for(f"left-{how}", "processing")

    getattr(connection, how)()

    tasks.wait_for(f"left-{how}", "canceled")


def test_a_client_that_was_answered_at_once_may_go(tasks: PredictorServer):
    gate = tasks.gate("gone")
    with tasks.connect() as connection:
        body = {"id": "unattended", "input": {"gate": str(gate)}}
        assert connection.post(body, PREDICTIONS, {"Content-Type": JSON, **ASYNC}).status == 202
    tasks.wait_for("unattended", "processing")

    gate.open()

    tasks.wait_for("unattended", "succeeded")


# Webhooks


def test_webhooks_tell_of_a_prediction_from_start_to_end(tasks: PredictorServer, receiver: Receiver):
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
    answer = tasks.predict({"prints": "x", "key": "swordfish"}, trace, webhook=receiver.url)

    eventually(lambda: receiver.got and receiver.got[-1].body["status"] == "succeeded")
    assert receiver.statuses[0] == "processing"
    last = receiver.got[-1]
    assert {name: value for name, value in last.body.items() if name != "input"} == answer.json
    assert last.body["input"]["key"] == "**********"
    assert all(got.headers["traceparent"] == trace["traceparent"] for got in receiver.got)
    assert all(got.headers["tracestate"] == "a=1" for got in receiver.got)


def test_a_receiver_that_never_answers_holds_nothing_up(tasks: PredictorServer, receiver: Receiver):
    receiver.hold()

    answers = [tasks.predict({}, webhook=receiver.url) for _ in range(3)]

    assert [answer.json["status"] for answer in answers] == ["succeeded"] * 3
    receiver.let_go()
    eventually(lambda: receiver.statuses.count("succeeded") == 3)


# Other servers


def test_a_worker_that_dies_fails_what_it_ran_and_takes_no_more(tmp_path: Path, receiver: Receiver):
    with serving_predictor(tmp_path, "tasks.py:Predictor") as server:
        answer = server.predict({"prints": "last words", "exits": 7}, webhook=receiver.url)
        refused = server.predict({})
        health = server.health()

        assert (answer.status, answer.json["status"]) == (200, "failed")
        assert "crash" in answer.json["error"]
        assert "7" in answer.json["error"]
        assert answer.json["logs"] == "last words\n"
        assert (refused.status, refused.json["status"]) == (503, "failed")
        assert "gone" in refused.json["error"]
        assert (health["status"], health["slots"]["busy"]) == ("DEFUNCT", 0)
        eventually(lambda: receiver.statuses[-1:] == ["failed"])


def test_a_setup_that_failed_says_why(tmp_path: Path):
    with serving_predictor(tmp_path, "missing.py:Predictor", wait_for="SETUP_FAILED") as server:
        refused = server.predict({}, STREAM)
        document = server.ask("GET", "/openapi.json")
        health = server.health()

    assert (refused.status, refused.json["status"]) == (503, "failed")
    assert "setup failed" in refused.json["error"]
    assert document.status == 503
    assert "error" in document.json
    assert health["setup"]["status"] == "failed"
    assert "missing.py" in health["setup"]["logs"]


def test_a_shutdown_lets_what_runs_end_and_tells_its_receiver(tmp_path: Path, receiver: Receiver):
    with serving_predictor(tmp_path, "tasks.py:Predictor") as server:
        gate = server.gate("last")
        server.predict({"gate": str(gate)}, ASYNC, webhook=receiver.url, webhook_events_filter=["completed"])

        assert server.ask("POST", "/shutdown").json == {}
        gate.open()

        assert server.process.wait() == 0
        assert receiver.statuses == ["succeeded"]


def test_a_shutdown_ends_what_does_not_end_by_itself(tmp_path: Path, receiver: Receiver):
    with serving_predictor(tmp_path, "tasks.py:Predictor", drain_timeout=0.3) as server:
        connection = server.begin({"gate": str(server.gate("never"))}, webhook=receiver.url)
        eventually(lambda: receiver.statuses == ["processing"])

        server.ask("POST", "/shutdown")
        answer = connection.answer()
        connection.leave()

        assert (answer.json["status"], answer.json["error"]) == ("failed", "ShuttingDown: server shut down")
        assert server.process.wait() == 0
        assert receiver.statuses == ["processing", "failed"]
        assert json.dumps(receiver.got[-1].body["error"]) == '"ShuttingDown: server shut down"'
