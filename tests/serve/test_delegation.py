"""Three replicas that answer for each other: one has a language model, one handlers, one nothing of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from tests.serve.replicas import TOKEN, Replica, ports, replica
from tests.serve.server import Servers
from tests.serve.wire import CHAT, Answer, chat, events, request, text_of
from tests.support.waiting import eventually

HI = [{"role": "user", "content": "hi"}]
SHARED = "shared=synthetic:?tokens_per_s=50&slots=1&queue=0"  # two replicas have it
GHOST = "ghost=README.md"  # a model that every replica announces, and none can load
PREDICTOR = "deploy/predictor/predict.py:Predictor"
ADD = {
    "inputs": [
        {"name": "a", "datatype": "INT32", "shape": [2], "data": [1, 2]},
        {"name": "b", "datatype": "INT32", "shape": [2], "data": [10, 20]},
    ]
}


@dataclass
class Ring:
    """The replicas."""

    model: Replica
    app: Replica
    bare: Replica


@pytest.fixture(scope="module")
def ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    kept: Servers = request.getfixturevalue("_kept")
    models = f"small=synthetic:?tokens_per_s=50,{SHARED},{GHOST}"
    with ports(3) as (a, b, c), ExitStack() as stack:
        start = stack.enter_context
        handlers = "tests/apps/shared.py:app"
        models_of_app = f"large=synthetic:?tokens_per_s=50,{SHARED},{GHOST}"
        options: dict[str, Any] = {"wait_for": None, "slots": 1, "delegate_on_full": 1}
        model = start(replica(kept, "model", a, b.url, c.url, model=models, **options))
        app = start(replica(kept, "app", b, a.url, c.url, model=models_of_app, worker_app=handlers, predictor=PREDICTOR,
                              wait_for=None))  # fmt: skip
        bare = start(replica(kept, "bare", c, a.url, b.url, model=f"third=synthetic:,{GHOST}", wait_for=None))
        for one in (model, app, bare):
            one.server.wait_until("ok")
        for one in (model, app, bare):
            for url in {a.url, b.url, c.url} - {one.base_url}:
                one.wait_peer(url, "ready")
        model.wait_handler(b.url, "add")
        bare.wait_handler(b.url, "add")
        yield Ring(model, app, bare)


def ask(at: Replica, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    with at.server.connect() as connection:
        return connection.ask(method, path, body, headers)


def post_chat(at: Replica, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    return ask(at, "POST", CHAT, chat(**{"model": "small", "max_tokens": 3} | fields), headers)


# Who answers.


def test_a_chat_is_answered_by_the_replica_that_has_its_model(ring: Ring):
    asked: dict[str, Any] = {"model": "small", "messages": HI, "max_tokens": 5, "seed": 1, "temperature": 0}
    with ring.bare.server.client() as client:
        answer = client.chat.completions.with_raw_response.create(**asked)

    with ring.model.server.client() as client:
        direct = client.chat.completions.create(**asked)
    assert answer.parse().choices[0].message.content == direct.choices[0].message.content
    assert answer.headers["x-corosrv-served-by"] == "model"


def test_what_is_served_here_is_answered_here(ring: Ring):
    assert post_chat(ring.bare, model="third").headers["x-corosrv-served-by"] == "bare"


def test_a_stream_comes_piece_by_piece(ring: Ring):
    with ring.bare.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
        head = connection.head()
        pieces = connection.pieces()

        assert head.headers["x-corosrv-served-by"] == "model"
        assert text_of(events(b"".join(next(pieces) for _ in range(6))))
        assert ring.model.server.metric("running") == 1, "the pieces were gathered"
    ring.model.server.wait_metric("running", 0)


def test_ollamas_lines_come_one_by_one_from_the_replica_that_has_the_model(ring: Ring):
    body: dict[str, Any] = {"model": "small:latest", "messages": HI}
    with ring.bare.server.connect() as connection:
        connection.send(request("POST", "/api/chat", body | {"options": {"num_predict": 3000}}))
        head = connection.head()
        pieces = connection.pieces()

        assert head.headers["x-corosrv-served-by"] == "model"
        assert head.headers["content-type"] == "application/x-ndjson"
        lines = b"".join(next(pieces) for _ in range(6)).splitlines()
        assert {json.loads(line)["done"] for line in lines} == {False}
        assert ring.model.server.metric("running") == 1, "the pieces were gathered"
    ring.model.server.wait_metric("running", 0)

    whole = ask(ring.bare, "POST", "/api/chat", body | {"stream": False, "options": {"num_predict": 3}})
    assert (whole.status, whole.json["eval_count"]) == (200, 3)
    missing = ask(ring.bare, "POST", "/api/chat", body | {"model": "gpt-9"})
    assert (missing.status, missing.json) == (404, {"error": "model 'gpt-9' not found"})


def test_anthropic_s_client_is_answered_across_replicas(ring: Ring):
    asked: dict[str, Any] = {"model": "small", "max_tokens": 3, "messages": HI}
    with anthropic.Anthropic(base_url=ring.bare.base_url, api_key="none", max_retries=0) as client:
        message = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            text = stream.get_final_text()

    assert message.usage.output_tokens == 3
    assert text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "x"}),
        ("/completion", {"prompt": "x", "n_predict": 2}),
        ("/v1/completions", {"prompt": "x", "max_tokens": 2}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 16}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
def test_all_paths_of_a_language_model_are_delegated(ring: Ring, path: str, body: dict[str, Any]):
    answer = ask(ring.bare, "POST", path, {"model": "small", **body})

    direct = ask(ring.model, "POST", path, {"model": "small", **body})
    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (direct.status, "model")
    assert answer.json.keys() == direct.json.keys()


def test_a_full_queue_is_helped_out_by_a_peer(ring: Ring):
    with ring.model.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="shared", stream=True, max_tokens=3000)))
        connection.head()

        answer = post_chat(ring.model, model="shared")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "app")


def test_a_handler_is_called_across_replicas(ring: Ring):
    answer = ask(ring.model, "POST", "/v2/models/add/infer", ADD)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "app")
    assert answer.json["outputs"][0]["data"] == [11, 22]


def test_a_handler_is_described_and_found_ready_across_replicas(ring: Ring):
    assert ask(ring.model, "GET", "/v2/models/add").json["name"] == "add"
    assert ask(ring.model, "GET", "/v2/models/versioned/versions/2/ready").status == 200
    assert ask(ring.model, "GET", "/v2/models/versioned/versions/9/ready").status == 404


@pytest.mark.parametrize(("name", "status"), [("loses", 404), ("sleeps", 503)])
def test_what_a_handler_answers_is_no_reason_to_ask_anybody_else(ring: Ring, name: str, status: int):
    before = ring.app.delegated(), ring.bare.delegated()
    body = {"inputs": [{"name": "n", "datatype": "INT32", "shape": [1], "data": [4]}]}

    answer = ask(ring.app, "POST", f"/v2/models/{name}/infer", body)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (status, "app")
    assert (ring.app.delegated(), ring.bare.delegated()) == before


@pytest.mark.parametrize("query", [{"type": "double"}, {"size": {"gte": 8}}])
def test_a_capability_is_found_across_replicas(ring: Ring, query: dict[str, Any]):
    body = {"capability": query, "inputs": [{"name": "n", "datatype": "INT32", "shape": [1], "data": [4]}]}

    answer = ask(ring.model, "POST", "/v2/capabilities/infer", body)
    by_header = ask(
        ring.bare, "POST", "/v2/capabilities/infer", {"inputs": body["inputs"]}, {"X-Capability-Type": "double"}
    )

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "app")
    assert answer.json["outputs"][0]["data"] == by_header.json["outputs"][0]["data"] == [8]


def test_a_capability_that_nobody_has_is_answered_here(ring: Ring):
    body = {"capability": {"type": "triple"}, "inputs": []}

    answer = ask(ring.model, "POST", "/v2/capabilities/infer", body)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "model")


def test_a_prediction_is_run_by_the_replica_that_has_a_predictor(ring: Ring):
    answer = ask(ring.bare, "POST", "/predictions", {"input": {"name": "Ada", "times": 2}})

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "app")
    assert "".join(answer.json["output"]) == "Hello, Ada! Hello, Ada! "


def test_a_prediction_that_runs_on_is_found_and_cancelled_across_replicas(ring: Ring):
    body = {"input": {"name": "Ada"}}
    created = ask(ring.bare, "PUT", "/predictions/delegated-1", body, {"Prefer": "respond-async"})

    look_up = ask(ring.bare, "GET", "/predictions/delegated-1")

    assert created.status in (200, 202)
    assert look_up.json["id"] == "delegated-1"
    assert ask(ring.bare, "GET", "/predictions/nobody-s").status == 404


def test_a_binary_body_passes_as_it_is(ring: Ring):
    inputs = [
        {"name": name, "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}} for name in ("a", "b")
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = head + (5).to_bytes(4, "little") + (7).to_bytes(4, "little")

    answer = ask(ring.model, "POST", "/v2/models/add/infer", body, {"Inference-Header-Content-Length": str(len(head))})

    assert answer.status == 200
    assert answer.body[int(answer.headers["inference-header-content-length"]) :] == (12).to_bytes(4, "little")


def test_a_model_generates_through_v2_across_replicas(ring: Ring):
    body = {"text_input": "hi", "parameters": {"max_tokens": 3}}

    answer = ask(ring.bare, "POST", "/v2/models/small/generate", body)
    stream = ask(ring.bare, "POST", "/v2/models/small/generate_stream", body)

    assert answer.json["text_output"]
    assert len(events(stream.body)) >= 1
    assert stream.headers["x-corosrv-served-by"] == "model"


def test_a_refusal_of_the_peer_is_passed_on_unchanged(ring: Ring):
    answer = post_chat(ring.bare, max_tokens=-5)

    direct = post_chat(ring.model, max_tokens=-5)
    assert (answer.status, answer.json) == (direct.status, direct.json)
    assert answer.status == 400


def test_the_list_of_models_says_which_replica_has_each(ring: Ring):
    models = {model["id"]: model.get("replica") for model in ask(ring.bare, "GET", "/v1/models").json["data"]}

    assert models["third"] is None
    assert (models["small"], models["large"]) == ("model", "app")
    assert ask(ring.bare, "GET", "/v1/models/small").json["id"] == "small"


def test_operators_see_the_peers(ring: Ring):
    peers = ring.bare.peers()

    assert {peer["id"] for peer in peers.values()} == {"model", "app"}
    assert peers[ring.app.base_url]["last_answer"] == "it announced what it serves"
    assert ring.bare.manage("GET", "/v1/peers")["replica"] == "bare"


# Who does not.


def test_what_nobody_serves_is_answered_here(ring: Ring):
    answer = post_chat(ring.bare, model="nobody-has-it")

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "bare")
    assert answer.error["code"] == "model_not_found"


def test_what_all_announce_and_none_can_serve_visits_each_replica_once(ring: Ring):
    def visits() -> dict[str, float]:
        series = 'corosrv_http_requests_total{route="/v1/chat/completions",status="503"}'
        return {one: getattr(ring, one).server.metrics().get(series, 0.0) for one in ("model", "app", "bare")}

    before = visits()
    answer = post_chat(ring.model, model="ghost")

    assert answer.status == 503
    after = visits()
    assert {name: after[name] - before[name] for name in after} == {"model": 1, "app": 1, "bare": 1}


def test_a_request_that_was_here_is_a_loop(ring: Ring):
    said = {"X-Corosrv-Token": TOKEN, "X-Corosrv-Hops": "1", "X-Corosrv-Path": "app,model"}

    answer = post_chat(ring.model, said)

    assert answer.status == 508
    assert answer.error["code"] == "loop_detected"
    eventually(lambda: "has passed the replica model before: app > model" in ring.model.server.log, what="the log")


def test_at_the_hop_limit_the_answer_of_this_replica_is_final(ring: Ring):
    said = {"X-Corosrv-Token": TOKEN, "X-Corosrv-Hops": "2", "X-Corosrv-Path": "x,y"}

    answer = post_chat(ring.bare, said)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (404, "bare")
    assert answer.headers["x-corosrv-path"] == "x,y,bare"


def test_a_request_goes_to_nobody_in_its_path(ring: Ring):
    said = {"X-Corosrv-Token": TOKEN, "X-Corosrv-Hops": "1", "X-Corosrv-Path": "model"}

    assert post_chat(ring.bare, said).status == 404


def test_a_client_that_speaks_as_a_peer_is_not_believed(ring: Ring):
    spoofed = {"X-Corosrv-Hops": "2", "X-Corosrv-Path": "model,bare", "X-Corosrv-Elapsed-Ms": "99999999"}

    answer = post_chat(ring.bare, spoofed | {"X-Corosrv-Caller": "0" * 64, "X-Request-Timeout-Ms": "30000"})

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (200, "model")
    assert "x-corosrv-path" not in answer.headers


@pytest.mark.parametrize("path", ["/v1/replica", "/v1/models"])
def test_a_wrong_token_is_refused(ring: Ring, path: str):
    assert ask(ring.model, "GET", path, headers={"X-Corosrv-Token": "a-wrong-token"}).status == 401


def test_what_a_replica_serves_is_told_to_peers_alone(ring: Ring):
    assert ask(ring.model, "GET", "/v1/replica").status == 401
    assert ask(ring.model, "GET", "/v1/replica", headers={"X-Corosrv-Token": TOKEN}).json["replica"] == "model"


@pytest.mark.parametrize("at", ["model", "bare"])  # where the model is, and where it is not
@pytest.mark.parametrize(
    "headers",
    [
        {"X-Corosrv-Hops": "many"},
        {"X-Corosrv-Hops": "-1"},
        {"X-Corosrv-Path": "a b"},
        {"X-Corosrv-Elapsed-Ms": "-1"},
        {"X-Corosrv-Caller": "Bob"},
    ],
)
def test_headers_that_no_replica_writes_are_refused_by_name(ring: Ring, at: str, headers: dict[str, str]):
    answer = post_chat(getattr(ring, at), {"X-Corosrv-Token": TOKEN} | headers)

    assert (answer.status, answer.headers["x-corosrv-served-by"]) == (400, at)
    assert next(iter(headers)) in answer.error["message"]


# Time, and clients that leave.


def test_a_client_that_leaves_ends_its_call_at_the_peer(ring: Ring):
    cancelled = ring.model.server.cancelled()
    with ring.bare.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="small", stream=True, max_tokens=3000)))
        connection.head()
        connection.leave()

    eventually(lambda: ring.model.server.cancelled() > cancelled, 10, "the peer's job is cancelled")
    ring.bare.server.wait_metric("delegated_in_flight", 0)


def test_a_client_that_leaves_before_the_answer_ends_its_call_at_the_peer(ring: Ring):
    cancelled = ring.model.server.cancelled()
    with ring.bare.server.connect() as connection:
        connection.send(request("POST", CHAT, chat(model="small", max_tokens=3000)))
        ring.model.server.wait_metric("running", 1)
        connection.leave()

    eventually(lambda: ring.model.server.cancelled() > cancelled, 10, "the peer's job is cancelled")
    eventually(lambda: ring.bare.delegated().get("cancelled", 0) >= 1, 10, "it is counted")


def test_the_time_that_a_request_was_on_its_way_counts(ring: Ring):
    said = {"X-Corosrv-Token": TOKEN, "X-Corosrv-Hops": "1", "X-Corosrv-Path": "app", "X-Request-Timeout-Ms": "60000"}

    assert post_chat(ring.model, said | {"X-Corosrv-Elapsed-Ms": "0"}).status == 200
    assert post_chat(ring.model, said | {"X-Corosrv-Elapsed-Ms": "60000"}).status in (503, 504)


def test_a_repeated_key_is_answered_with_the_peer_s_first_answer(ring: Ring):
    key = {"Idempotency-Key": "delegation-1"}

    first, second = (post_chat(ring.bare, key, max_tokens=4) for _ in range(2))

    assert first.json == second.json
    assert second.headers["idempotency-replayed"] == "true"


def test_a_request_keeps_its_id(ring: Ring):
    assert post_chat(ring.bare, {"X-Request-Id": "my-own-1"}).headers["x-request-id"] == "my-own-1"


def test_a_body_that_is_no_json_is_refused_here(ring: Ring):
    assert ask(ring.bare, "POST", CHAT, b"{").status == 400


def test_the_official_client_sees_an_error_of_the_usual_kind(ring: Ring):
    with ring.bare.server.client() as client, pytest.raises(openai.NotFoundError, match="nobody-has-it"):
        client.chat.completions.create(model="nobody-has-it", messages=HI)
