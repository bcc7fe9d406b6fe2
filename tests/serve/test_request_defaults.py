"""What the operator says for requests that leave it open reaches them, and a request's own field goes before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.server import SERVE, Server, servers
from tests.serve.wire import Connection, chat

FLAGS: dict[str, Any] = {
    "--typical": 0.9,
    "--top-nsigma": 2.5,
    "--xtc-probability": 0.25,
    "--xtc-threshold": 0.5,
    "--dynatemp-range": 0.25,
    "--dynatemp-exp": 2.0,
    "--dry-multiplier": 0.5,
    "--dry-base": 2.0,
    "--dry-allowed-length": 3,
    "--dry-penalty-last-n": 99,
    "--dry-sequence-breaker": "#",
    "--mirostat": 2,
    "--mirostat-ent": 4.0,
    "--mirostat-lr": 0.25,
    "--adaptive-target": 0.75,
    "--adaptive-decay": 0.5,
    "--samplers": "penalties;dry;top-k;temperature",
    "--keep": 5,
    "-r": "STOP",
}
CHOSEN: dict[str, Any] = {
    "typical_p": 0.9,
    "top_n_sigma": 2.5,
    "xtc_probability": 0.25,
    "xtc_threshold": 0.5,
    "dynatemp_range": 0.25,
    "dynatemp_exponent": 2.0,
    "dry_multiplier": 0.5,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 99,
    "dry_sequence_breakers": ["#"],
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.25,
    "adaptive_target": 0.75,
    "adaptive_decay": 0.5,
    "samplers": ["penalties", "dry", "top_k", "temperature"],
    "n_keep": 5,
    "stop": ["STOP"],
    "ignore_eos": True,
    "cache_prompt": False,
}
OWN: dict[str, Any] = {
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.25,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.5,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": ["!"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.5,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.25,
    "samplers": ["top_k"],
    "n_keep": 0,
    "stop": ["END"],
    "ignore_eos": False,
    "cache_prompt": True,
}


@pytest.fixture(scope="module", params=["inproc", "process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Server]:
    flags = [word for flag, value in FLAGS.items() for word in (flag, str(value))]
    folder = tmp_path_factory.mktemp("defaults")
    with servers(folder, cache) as started:
        yield started.start(
            *SERVE, *flags, "--ignore-eos", "--no-cache-prompt", engine=request.param, model="synthetic:", slots=2
        )


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect(timeout=60) as connection:
        yield connection


def settings_of(connection: Connection, **asked: Any) -> dict[str, Any]:
    answer = connection.post({"prompt": "Once", "n_predict": 1, **asked}, "/completion")
    assert answer.status == 200, answer.body
    return {name: answer.json["generation_settings"][name] for name in CHOSEN}


def test_a_request_that_says_nothing_gets_what_the_operator_says(connection: Connection) -> None:
    shown = connection.ask("GET", "/props").json["default_generation_settings"]["params"]

    assert {name: shown[name] for name in CHOSEN} == CHOSEN
    assert settings_of(connection) == CHOSEN


def test_each_field_of_a_request_goes_before_it(connection: Connection) -> None:
    assert OWN.keys() == CHOSEN.keys()
    assert settings_of(connection, **OWN) == OWN
    for name, value in OWN.items():
        assert settings_of(connection, **{name: value}) == CHOSEN | {name: value}


FORMS = (
    "said=synthetic:?grammar=root+::=+%22yes%22&stop=[]",
    "valid=synthetic:?json_schema={%22enum%22:[%22a%22]}",
    "biased=synthetic:?logit_bias=65%2B100",
    "wrong=synthetic:?grammar=root+::=+missing",
    "banned=synthetic:?logit_bias=999999999%2B1",
)


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Connection]:
    folder = tmp_path_factory.mktemp("forms")
    with servers(folder, cache) as started:
        server = started.start(*SERVE, model=",".join(FORMS), slots=2)
        with server.connect(timeout=60) as connection:
            yield connection


def said(connection: Connection, model: str, **asked: Any) -> str:
    answer = connection.post(chat(model=model, **asked))
    assert answer.status == 200, answer.body
    return str(answer.json["choices"][0]["message"]["content"])


def test_answers_have_the_operator_s_form_where_requests_ask_for_none(formed: Connection) -> None:
    assert said(formed, "said") == "yes"
    assert said(formed, "said", grammar='root ::= "no"') == "no"
    assert said(formed, "valid") == '"a"'


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "b", "schema": {"enum": ["b"]}}}},
        {"structured_outputs": {"choice": ['"b"']}},
    ],
)
def test_a_form_that_a_request_asks_for_goes_before_the_operator_s(formed: Connection, asked: dict[str, Any]) -> None:
    assert said(formed, "said", **asked) == '"b"'


def test_a_tool_that_must_be_called_goes_before_the_operator_s_form(formed: Connection) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}

    answer = formed.post(chat(model="said", tools=[tool], tool_choice="required", parallel_tool_calls=False))

    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {})


def test_biases_of_the_operator_hold_until_a_request_has_its_own(formed: Connection) -> None:
    def tokens(**asked: Any) -> set[int]:
        body = {"model": "biased", "prompt": "x", "n_predict": 4, "return_tokens": True, **asked}
        return set(formed.post(body, "/completion").json["tokens"])

    assert tokens() == {65}
    assert tokens(logit_bias=[[66, 100]]) == {66}
    assert tokens(logit_bias=[]) != {65}


@pytest.mark.parametrize(("model", "words"), [("wrong", "missing"), ("banned", "999999999 is no token id")])
def test_a_model_that_cannot_use_them_is_not_served(formed: Connection, model: str, words: str) -> None:
    answer = formed.post(chat(model=model))

    assert answer.status == 503
    assert "the defaults of requests (their grammar or logit_bias) cannot be used" in answer.json["error"]["message"]
    assert words in answer.json["error"]["message"]
