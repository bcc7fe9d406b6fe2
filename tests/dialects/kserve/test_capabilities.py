"""Calls of whatever satisfies a query."""

from __future__ import annotations

import json

import pytest
from flask.testing import FlaskClient

from corosrv.contracts.jobs.infer import CapabilityTarget
from tests.dialects.kserve.generator_worker import GeneratorWorker

PATH = "/v2/capabilities/infer"


def test_the_answer_names_the_handler_and_all_its_attributes(client: FlaskClient):
    answer = client.post(PATH, json={"capability": {"type": "embed"}, "inputs": [], "parameters": {"x": 1}})

    assert answer.json["model_name"] == "embed"
    assert answer.json["parameters"]["x"] == 1
    assert json.loads(answer.json["parameters"]["capability"]) == {"type": "embed", "tier": "small", "ctx": 8192}


def test_a_query_is_passed_on_as_it_is(client: FlaskClient, worker: GeneratorWorker):
    body = {"capability": {"type": "embed"}, "prefer": {"tier=small": 2}, "fuzzy": True, "inputs": []}

    client.post(PATH, json=body)

    assert worker.jobs[0].target == CapabilityTarget({"type": "embed"}, {"tier=small": 2.0}, True)


def test_headers_make_a_query_and_the_body_goes_before_them(client: FlaskClient):
    headers = {"X-Capability-Type": "chat", "X-Cap-Max-Ctx": ">=4096"}

    def target_of(**body) -> str:
        return client.post(PATH, json={"inputs": [], **body}, headers=headers).json["error"]

    assert target_of() == "no handler has this capability"
    assert client.post(PATH, json={"inputs": [], "capability": {"type": "embed"}}).status_code == 200


@pytest.mark.parametrize(
    ("members", "prefer", "is_fuzzy"),
    [({}, {"tier=small": 2.0}, True), ({"prefer": {"tier=small": 1}, "fuzzy": False}, {"tier=small": 1.0}, False)],
)
def test_headers_have_preferences_and_the_body_goes_before_them(
    client: FlaskClient, worker: GeneratorWorker, members: dict, prefer: dict, is_fuzzy: bool
):
    headers = {"X-Prefer": '{"tier=small": 2}', "X-Fuzzy": "true"}

    client.post(PATH, json={"capability": {"type": "embed"}, "inputs": [], **members}, headers=headers)

    assert worker.jobs[0].target == CapabilityTarget({"type": "embed"}, prefer, is_fuzzy)


@pytest.mark.parametrize("header", [("X-Prefer", "tier=small"), ("X-Prefer", '{"a": true}'), ("X-Fuzzy", "maybe")])
def test_a_wrong_header_is_refused_by_its_name(client: FlaskClient, header: tuple[str, str]):
    answer = client.post(PATH, json={"capability": {"type": "embed"}, "inputs": []}, headers=[header])

    assert answer.status_code == 400
    assert header[0] in answer.json["error"]


def test_nothing_that_matches_is_not_found_and_an_empty_query_refused(client: FlaskClient):
    assert client.post(PATH, json={"inputs": [], "capability": {"type": "chat"}}).status_code == 404
    assert client.post(PATH, json={"inputs": []}).status_code == 400


@pytest.mark.parametrize(
    "members",
    [{"capability": ["a"]}, {"capability": {"a": 1}, "prefer": {"a": "x"}}, {"capability": {"a": 1}, "fuzzy": 1}],
)
def test_a_wrong_member_is_refused(client: FlaskClient, members: dict):
    assert client.post(PATH, json={"inputs": [], **members}).status_code == 400


def test_a_capability_is_no_model(client: FlaskClient):
    assert client.post("/v2/models/embed/infer", json={"inputs": []}).status_code == 404
    assert client.get("/v2/models/embed").status_code == 404
