"""API keys with limits where a peer answers: requests count where they came in, tokens where they are computed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from corosrv.contracts.settings import add_key
from tests.serve.replicas import TOKEN, Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.test_grpc_keys import asked, call, refusal
from tests.serve.test_keys import ask, usage
from tests.support.waiting import eventually

_numbers = itertools.count()


@dataclass
class Replicas:
    """A front that has neither model of its peers; one of them has its file of keys, and the other another one."""

    front: Replica
    same: Replica  # has the model `small`
    other: Replica  # has the model `large`
    file: str
    other_file: str


@pytest.fixture(scope="module")
def replicas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    kept: Servers = request.getfixturevalue("_kept")
    folder = tmp_path_factory.mktemp("keys")
    file, other_file = str(folder / "keys.toml"), str(folder / "other.toml")
    for one in (file, other_file):
        add_key(one, "root", {"admin": True})
    speed = "synthetic:?tokens_per_s=200"
    with ports(3) as (a, b, c), ExitStack() as stack:
        start = stack.enter_context
        options: dict[str, Any] = {"wait_for": None, "grpc_port": 0}
        front = start(replica(kept, "front", a, b.url, c.url, model=f"own={speed}", api_keys_file=file, **options))
        same = start(replica(kept, "same", b, a.url, model=f"small={speed}", api_keys_file=file, **options))
        other = start(replica(kept, "other", c, a.url, model=f"large={speed}", api_keys_file=other_file, **options))
        for one in (front, same, other):
            one.server.wait_until("ok")
        for url in (b.url, c.url):
            front.wait_peer(url, "ready")
        front.wait_handler(b.url, "small")
        front.wait_handler(c.url, "large")
        yield Replicas(front, same, other, file, other_file)


@pytest.fixture
def add(replicas: Replicas) -> Callable[..., str]:
    """Adds a key to the file that two of them have."""
    return lambda **limits: add_key(replicas.file, f"key of test {next(_numbers)}", limits)


def complete(at: Replica, key: str, model: str = "small", max_tokens: int = 1, **fields: Any) -> Any:
    body = {"model": model, "prompt": "hi", "max_tokens": max_tokens} | fields
    return ask(at.server, "POST", "/v1/completions", key, body)


def test_a_request_that_a_peer_answers_is_counted_once(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add(requests_per_minute=2)

    answers = [complete(replicas.front, key) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["x-corosrv-served-by"] == "same"
    assert answers[0].headers.get_list("x-ratelimit-remaining-requests") == ["1"]
    assert usage(replicas.front.server, key)["total"]["requests"] == 2
    assert usage(replicas.same.server, key)["total"]["requests"] == 0
    assert complete(replicas.same, key).headers["x-ratelimit-remaining-requests"] == "1"


def test_tokens_are_counted_by_the_peer_that_computes_them(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add(tokens_per_minute=80)

    answers = [complete(replicas.front, key, max_tokens=50) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 429]
    assert "80 tokens a minute" in answers[1].json()["error"]["message"]
    assert int(answers[1].headers["Retry-After"]) >= 1
    assert usage(replicas.same.server, key)["total"]["generated_tokens"] == 50
    assert usage(replicas.front.server, key)["total"]["generated_tokens"] == 0
    assert complete(replicas.front, key, "own", max_tokens=50).status_code == 200


def test_a_model_that_the_key_may_not_use_is_asked_of_no_peer(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add(models=("own", "unheard"))

    listed = ask(replicas.front.server, "GET", "/v1/models", key).json()["data"]

    assert [model["id"] for model in listed] == ["own"]
    assert complete(replicas.front, key, "large").status_code == 404  # whose server knows no such key
    assert ask(replicas.front.server, "GET", "/v1/models/large", key).status_code == 404
    assert ask(replicas.front.server, "POST", "/api/show", key, {"model": "large:latest"}).status_code == 404
    assert refusal(replicas.front.server, key, sent=asked("large")).code().name == "NOT_FOUND"


def test_what_the_peer_s_own_file_says_of_the_key_holds_there(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add()
    line = f'\n[[keys]]\nname = "narrow {next(_numbers)}"\nhash = "{hash_of(key)}"\nmodels = ["something else"]\n'
    with open(replicas.other_file, "a") as file:
        file.write(line)
    eventually(lambda: ask(replicas.other.server, "GET", "/v1/usage", key).status_code == 200, what="a known key")

    assert complete(replicas.front, key, "large").status_code == 404
    assert complete(replicas.front, key, "small").status_code == 200


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_a_peer_that_does_not_know_a_key_answers_unless_it_had_to_count(
    replicas: Replicas, add: Callable[..., str]
) -> None:
    free, counted = add(requests_per_minute=100), add(tokens_per_day=100_000)

    refused = complete(replicas.front, counted, "large")

    assert complete(replicas.front, free, "large").headers["x-corosrv-served-by"] == "other"
    assert refused.status_code == 503
    assert "file of keys differs" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert complete(replicas.front, counted, "small").status_code == 200


def test_a_call_over_grpc_that_a_peer_answers_is_counted_as_well(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add(requests_per_minute=2, tokens_per_minute=80)

    assert call(replicas.front.server, key, sent=asked("small", max_tokens=50)).model_name == "small"
    refused = refusal(replicas.front.server, key, sent=asked("small", max_tokens=50))
    over_requests = refusal(replicas.front.server, key, sent=asked("small"))
    not_counted = refusal(replicas.front.server, add(streams=3), sent=asked("large"))

    assert "80 tokens a minute" in refused.details()
    assert "2 requests a minute" in over_requests.details()
    assert "file of keys differs" in not_counted.details()
    assert usage(replicas.same.server, key)["total"]["requests"] == 0


def test_a_client_cannot_pass_itself_off_as_a_request_of_a_peer(replicas: Replicas, add: Callable[..., str]) -> None:
    key = add(requests_per_minute=1)
    headers = {"X-Corosrv-Caller": hash_of(key), "X-Corosrv-Counts": "1"}

    assert complete(replicas.same, key).status_code == 200
    body = {"model": "small", "prompt": "hi", "max_tokens": 1}
    alone = httpx.post(f"{replicas.same.server.url}/completions", json=body, headers=headers, trust_env=False)
    guessed = httpx.post(
        f"{replicas.same.server.url}/completions", json=body, trust_env=False,
        headers=headers | {"X-Corosrv-Token": TOKEN + "?"},
    )  # fmt: skip
    assert (alone.status_code, guessed.status_code) == (401, 401)
