"""API keys with limits, as clients of every dialect meet them."""

from __future__ import annotations

import datetime
import itertools
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from corosrv.app import create_app
from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.settings import add_key, remove_key
from tests.serve.server import DEPLOYED, GUNICORN, SERVE, START_SECONDS, Server, Servers
from tests.support.waiting import eventually

ASK: dict[str, Any] = {"model": "synthetic", "messages": [{"role": "user", "content": "hi"}]}
MODELS = "small=synthetic:?tokens_per_s=200,large=synthetic:?tokens_per_s=200"

AddKey = Callable[..., str]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest.fixture(scope="module")
def guarded(path: str, request: pytest.FixtureRequest) -> Server:
    """Two models, a file of keys, and a plain key."""
    add_key(path, "root", {"admin": True})
    kept: Servers = request.getfixturevalue("_kept")
    return kept.start(model=MODELS, api_keys="plain-key", api_keys_file=path)


@pytest.fixture
def add(guarded: Server, path: str) -> AddKey:
    """Adds a key of this test's own, which the server knows when it is there."""

    def add(name: str = "", **limits: Any) -> str:
        key = add_key(path, name or f"key of test {next(_numbers)}", limits)
        eventually(lambda: ask(guarded, "GET", "/v1/usage", key).status_code == 200, what="a server that knows the key")
        return key

    return add


def ask(server: Server, method: str, target: str, key: str, body: Any = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.request(
        method, f"http://127.0.0.1:{server.port}{target}", headers=headers, json=body, timeout=30, trust_env=False
    )


def usage(server: Server, key: str) -> dict[str, Any]:
    (one,) = ask(server, "GET", "/v1/usage", key).json()["data"]
    found: dict[str, Any] = one
    return found


# Limits


def test_openai_s_client_sees_a_limit_as_openai_s_own(guarded: Server, add: AddKey) -> None:
    with guarded.client(add(requests_per_minute=2)) as client:
        raw = client.chat.completions.with_raw_response.create(**ASK | {"model": "small"}, max_tokens=1)
        client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)

    assert raw.headers["x-ratelimit-limit-requests"] == "2"
    assert raw.headers["x-ratelimit-remaining-requests"] == "1"
    assert raw.headers["x-ratelimit-reset-requests"].endswith("s")
    assert "x-ratelimit-limit-tokens" not in raw.headers
    assert refused.value.code == "rate_limit_exceeded"
    assert 15 <= int(refused.value.response.headers["retry-after"]) <= 30  # with the time that two answers took
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_openai_s_client_that_waits_as_it_is_told_gets_in(guarded: Server, add: AddKey) -> None:
    with guarded.client(add(requests_per_minute=60), max_retries=1) as client:
        for _ in range(62):
            client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)


# Where a request for 50 tokens goes, its body, and where its error has its message.
DIALECTS: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "chat": ("/v1/chat/completions", ASK | {"max_tokens": 50}, lambda error: error["error"]["message"]),
    "completion": ("/v1/completions", {"prompt": "hi", "max_tokens": 50}, lambda error: error["error"]["message"]),
    "response": ("/v1/responses", {"input": "hi", "max_output_tokens": 50}, lambda error: error["error"]["message"]),
    "message": ("/v1/messages", ASK | {"max_tokens": 50}, lambda error: error["error"]["message"]),
    "native": ("/completion", {"prompt": "hi", "n_predict": 50}, lambda error: error["error"]["message"]),
    "ollama": (
        "/api/chat",
        ASK | {"stream": False, "options": {"num_predict": 50}},
        lambda error: error["error"],
    ),
    "v2": (
        "/v2/models/small/generate",
        {"text_input": "hi", "parameters": {"max_tokens": 50}},
        lambda error: error["error"],
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_tokens_are_limited_in_every_dialect_in_its_own_words(guarded: Server, add: AddKey, dialect: str) -> None:
    target, body, message_of = DIALECTS[dialect]
    key = add(tokens_per_minute=80)
    if "model" in body:
        body = body | {"model": "small"}

    answers = [ask(guarded, "POST", target, key, body) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 429]
    assert "80 tokens a minute" in message_of(answers[1].json())
    assert int(answers[1].headers["Retry-After"]) >= 1
    assert answers[1].headers["x-ratelimit-limit-tokens"] == "80"
    shown = usage(guarded, key)["total"]
    assert (shown["requests"], shown["refused_requests"], shown["generated_tokens"]) == (2, 1, 50)
    assert shown["prompt_tokens"] > 0


@pytest.mark.parametrize("is_stream", [False, True])
def test_what_is_left_is_settled_by_what_was_computed(guarded: Server, add: AddKey, is_stream: bool) -> None:
    key = add(tokens_per_minute=100_000)
    body = ASK | {"model": "small", "max_tokens": 50_000, "stop": ["."], "stream": is_stream}

    ask(guarded, "POST", "/v1/chat/completions", key, body)

    answer = ask(guarded, "GET", "/v1/usage", key)
    used = answer.json()["data"][0]["total"]
    assert 0 < used["generated_tokens"] < 1000
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) >= 100_000 - used["prompt_tokens"] - 1000


def test_a_stream_that_its_client_leaves_counts_as_far_as_it_came_and_makes_room(guarded: Server, add: AddKey) -> None:
    key = add(streams=1, tokens_per_day=100_000)
    with guarded.client(key) as client:
        with client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=3000, stream=True) as stream:
            for _, _ in zip(range(20), stream, strict=False):
                pass
            with pytest.raises(openai.RateLimitError, match="1 answers made at once"):
                client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)

        eventually(lambda: usage(guarded, key)["total"]["generated_tokens"] > 0, what="a stream that has ended")
        client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)

    shown = usage(guarded, key)["total"]
    assert 10 <= shown["generated_tokens"] < 1000
    assert shown["prompt_tokens"] > 0
    assert shown["compute_ms"] > 20  # nearly 5 ms a token


def test_a_request_that_is_refused_for_its_own_fault_costs_no_tokens(guarded: Server, add: AddKey) -> None:
    key = add(tokens_per_minute=5000, streams=1)
    bad = {"model": "small", "prompt": "x" * 4999, "max_tokens": 1}  # of which the context holds 4096

    statuses = [ask(guarded, "POST", "/v1/completions", key, bad).status_code for _ in range(3)]

    assert statuses == [400] * 3
    assert usage(guarded, key)["total"]["prompt_tokens"] == 0
    assert ask(guarded, "GET", "/v1/usage", key).headers["x-ratelimit-remaining-tokens"] == "5000"


# Models


def test_a_key_sees_and_may_use_its_models_alone(guarded: Server, add: AddKey) -> None:
    key = add(models=("large",))
    with guarded.client(key) as client:
        assert [model.id for model in client.models.list()] == ["large"]
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(**ASK | {"model": "small"}, max_tokens=1)
        answer = client.chat.completions.create(**ASK | {"model": "large"}, max_tokens=1)

    assert refused.value.code == "model_not_found"
    assert answer.model == "large"
    assert ask(guarded, "POST", "/completion", key, {"prompt": "hi", "n_predict": 1}).json()["model"] == "large"


FORBIDDEN = [
    ("POST", "/v1/completions", {"model": "small", "prompt": "hi", "max_tokens": 1}),
    ("POST", "/v1/messages", ASK | {"model": "small", "max_tokens": 1}),
    ("POST", "/v1/responses", {"model": "small", "input": "hi"}),
    ("POST", "/v1/embeddings", {"model": "small", "input": "hi"}),
    ("POST", "/api/chat", ASK | {"model": "small"}),
    ("POST", "/api/show", {"model": "small"}),
    ("POST", "/v2/models/small/generate", {"text_input": "hi"}),
    ("POST", "/tokenize", {"model": "small", "content": "hi"}),
    ("POST", "/models/unload", {"model": "small"}),
    ("GET", "/v1/models/small", None),
    ("GET", "/v2/models/small", None),
    ("GET", "/slots?model=small", None),
]


@pytest.mark.parametrize(("method", "target", "body"), FORBIDDEN, ids=[row[1] for row in FORBIDDEN])
def test_another_model_is_not_there_in_any_dialect(
    guarded: Server, add: AddKey, method: str, target: str, body: Any
) -> None:
    answer = ask(guarded, method, target, add(models=("large",)), body)

    assert answer.status_code == 404, answer.text
    assert "small" in answer.text


# Usage


def test_an_admin_sees_all_keys_and_others_their_own(guarded: Server, add: AddKey) -> None:
    admin, key = add("boss", admin=True), add("worker")
    ask(guarded, "POST", "/v1/completions", key, {"model": "small", "prompt": "hi", "max_tokens": 3})

    shown = {one["key"]: one for one in ask(guarded, "GET", "/v1/usage", admin).json()["data"]}

    assert {"boss", "worker", "key-1", "root"} <= shown.keys()
    assert shown["worker"] == usage(guarded, key)
    assert shown["worker"]["today"]["generated_tokens"] == shown["worker"]["total"]["generated_tokens"] == 3
    assert usage(guarded, "plain-key")["key"] == "key-1"


def test_metrics_count_by_the_key_s_name(guarded: Server, add: AddKey) -> None:
    key = add("measured")
    ask(guarded, "POST", "/v1/completions", key, {"model": "small", "prompt": "hi", "max_tokens": 3})

    text = ask(guarded, "GET", "/metrics", key).text

    assert 'corosrv_key_generated_tokens_total{key="measured"} 3.0' in text
    assert key not in text
    assert 'key="key-1"' not in text


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_tells_its_time_on_the_machine_where_it_is_asked_for(server: Server, is_stream: bool) -> None:
    with server.client() as client:
        answer: Any = client.chat.completions.create(
            **ASK, max_tokens=10, stream=is_stream, extra_body={"include_compute": True}
        )
        shown = list(answer)[-1].usage if is_stream else answer.usage
        plain = client.chat.completions.create(**ASK, max_tokens=1).usage

    assert 100 < shown.compute_ms < 5000
    assert shown.completion_tokens == 10
    assert not hasattr(plain, "compute_ms")


@pytest.mark.parametrize(
    ("asked", "served"),
    [("auto", "default"), ("default", "default"), ("priority", "default"), ("flex", "flex"), (None, None)],
)
def test_an_answer_names_the_service_tier_that_it_had(server: Server, asked: Any, served: str | None) -> None:
    with server.client() as client:
        answer = client.chat.completions.create(**ASK, max_tokens=1, service_tier=asked)
        with client.chat.completions.create(**ASK, max_tokens=1, service_tier=asked, stream=True) as stream:
            tiers = {chunk.service_tier for chunk in stream}

    assert answer.service_tier == served
    assert tiers == {served}


def test_an_unknown_service_tier_is_refused(server: Server) -> None:
    with server.client() as client, pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**ASK, max_tokens=1, service_tier="gold")  # type: ignore[call-overload]

    assert refused.value.param == "service_tier"


# Keys that come and go


def test_a_key_may_be_removed_while_the_server_runs(guarded: Server, add: AddKey, path: str) -> None:
    key = add("temporary")

    remove_key(path, "temporary")

    eventually(lambda: ask(guarded, "GET", "/v1/usage", key).status_code == 401, what="a server that knows no such key")


def test_an_expired_key_is_refused_in_words(start: Servers, tmp_path: Path) -> None:
    path = str(tmp_path / "keys.toml")
    key = add_key(path, "late", {"expires": datetime.date(2020, 1, 1)})

    answer = ask(start.start(api_keys_file=path), "GET", "/v1/models", key)

    assert (answer.status_code, answer.json()["error"]["message"]) == (401, "this API key has expired")


def test_a_server_starts_with_a_file_of_keys_alone_and_lets_nobody_else_in(start: Servers, tmp_path: Path) -> None:
    path = str(tmp_path / "keys.toml")
    key = add_key(path, "alice", {})
    server = start.start(*SERVE, "--host", "127.0.0.1", "--api-keys-file", path)

    assert ask(server, "GET", "/v1/models", key).status_code == 200
    assert ask(server, "GET", "/v1/models", "sk-other").status_code == 401


@pytest.mark.parametrize("command", [SERVE, DEPLOYED], ids=["serve", "gunicorn"])
def test_a_hangup_reads_the_file_again_and_a_broken_one_leaves_the_server_as_it_is(
    start: Servers, tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(str(path), "alice", {})
    server = start.start(*command, api_keys_file=str(path))
    (before,) = server.workers()
    text = path.read_text()
    path.write_text("[[keys]")

    server.signal(signal.SIGHUP)
    eventually(lambda: "the old ones serve on" in server.log, START_SECONDS, "a line about the broken file")
    assert ask(server, "GET", "/v1/models", key).status_code == 200
    assert server.workers() == [before]

    path.write_text(text)
    server.signal(signal.SIGHUP)
    eventually(lambda: server.workers() and before not in server.workers(), START_SECONDS, "a new worker")
    server.wait_until("ok")
    assert ask(server, "GET", "/v1/models", key).status_code == 200


def test_several_workers_keep_one_limit(start: Servers, tmp_path: Path) -> None:
    path = str(tmp_path / "keys.toml")
    key, free = add_key(path, "limited", {"requests_per_minute": 20}), add_key(path, "free", {})
    admin = add_key(path, "operator", {"admin": True})
    server = start.start(*GUNICORN, "-b", "127.0.0.1:0", "-w", "3", "corosrv.app", api_keys_file=path)
    body = {"prompt": "hi", "max_tokens": 1}
    eventually(lambda: server.log.count("model synthetic: loaded") == 3, START_SECONDS, "three workers that are ready")

    began = time.monotonic()
    statuses = [ask(server, "POST", "/v1/completions", key, body).status_code for _ in range(30)]
    seconds = time.monotonic() - began
    others = {ask(server, "POST", "/v1/completions", free, body).status_code for _ in range(10)}
    shown = {one["key"]: one for one in ask(server, "GET", "/v1/usage", admin).json()["data"]}

    assert 20 <= statuses.count(200) <= 21 + seconds / 3  # one comes back every 3 s
    assert set(statuses[:20]) == {200}
    assert others == {200}
    assert shown["free"]["total"]["requests"] == usage(server, free)["total"]["requests"] == 10
    assert shown["free"]["today"]["generated_tokens"] == 10
    assert shown["limited"]["total"]["requests"] == statuses.count(200)
    assert usage(server, key)["total"]["requests"] == statuses.count(200)
    named = httpx.get(
        f"{server.url}/usage", headers={"X-Api-Key": key}, timeout=30, trust_env=False
    )  # in the same process
    assert named.json()["data"][0]["total"]["requests"] == statuses.count(200)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": 2, "predictor": "predict.py:Predictor"}, "a predictor"),
        ({"tokens_per_day": 2, "upstream": "http://127.0.0.1:9"}, "upstreams"),
    ],
)
def test_a_limit_that_could_not_be_kept_stops_the_start(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    (tmp_path / "predict.py").write_text("class Predictor:\n    def predict(self) -> str:\n        return 'x'\n")
    path = str(tmp_path / "keys.toml")
    limits = {name: options.pop(name) for name in ("streams", "tokens_per_day") if name in options}
    add_key(path, "alice", limits)
    if "predictor" in options:
        options["predictor"] = f"{tmp_path}/{options['predictor']}"

    with pytest.raises(SettingsError, match=f"'alice' has .*{words}"):
        create_app(settings.load({"api_keys_file": path, **options}, environ={}))
