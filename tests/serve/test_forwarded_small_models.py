"""Vectors, ranks and filled gaps through a front: the upstream is a real server with small models of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.serve.fronts import ServerFront, front
from tests.serve.server import Server, Servers
from tests.serve.wire import Answer, events
from tests.support.gguf import write_bert, write_llama

MEAN, RANK = 1, 4  # libllama's numbers of poolings
FILL_TOKENS = {f"tokenizer.ggml.{name}_token_id": 4 + id for id, name in enumerate(("fim_pre", "fim_suf", "fim_mid"))}
TEXTS = ["the cat sat on the mat", "a red boat", "why"]
CHANGING = ("timings", "id_slot", "id", "created")


@pytest.fixture(scope="module")
def upstream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Serves a model that embeds, one that ranks and one that fills gaps."""
    kept: Servers = request.getfixturevalue("_kept")
    folder = tmp_path_factory.mktemp("models")
    models = {
        "embed": write_bert(folder / "embed.gguf", pooling=MEAN),
        "rank": write_bert(folder / "rank.gguf", pooling=RANK, has_head=True),
        "fill": write_llama(folder / "fill.gguf", **FILL_TOKENS),
    }
    return kept.start(model=",".join(f"{name}={path}" for name, path in models.items()), ctx=256)


@pytest.fixture(scope="module")
def forwarding(request: pytest.FixtureRequest, upstream: Server) -> Iterator[ServerFront]:
    kept: Servers = request.getfixturevalue("_kept")
    with front(kept, f"http://127.0.0.1:{upstream.port}") as started:
        started.wait_state("ready")
        yield started


def post(server: Server, path: str, body: dict[str, Any]) -> Answer:
    with server.connect(timeout=30) as connection:
        return connection.post(body, path)


def lasting(value: Any) -> Any:
    """Returns what two answers to one question have in common: all but times and names of their own."""
    if isinstance(value, list):
        return [lasting(item) for item in value]
    if isinstance(value, dict):
        return {name: lasting(item) for name, item in value.items() if name not in CHANGING}
    return value


RANKING = {"model": "rank", "query": "a cat", "documents": TEXTS}
FILLING = {"model": "fill", "input_prefix": "a", "input_suffix": "c", "n_predict": 4, "temperature": 0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "embed", "input": TEXTS}),
        ("/v1/embeddings", {"model": "embed", "input": "the dog", "encoding_format": "base64"}),
        ("/embedding", {"model": "embed", "content": "the dog"}),
        ("/rerank", RANKING),
        ("/v1/rerank", {**RANKING, "top_n": 2}),
        ("/v1/reranking", {**RANKING, "return_documents": True}),
        ("/infill", FILLING),
        ("/infill", {**FILLING, "prompt": "b", "return_tokens": True}),
    ],
)
def test_an_answer_is_the_upstreams_own(forwarding: ServerFront, upstream: Server, path: str, body: dict[str, Any]):
    through, direct = (post(server, path, body) for server in (forwarding.server, upstream))

    assert (through.status, direct.status) == (200, 200), through.body
    assert lasting(through.json) == lasting(direct.json)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/embeddings", {"model": "embed"}, 400),
        ("/v1/embeddings", {"model": "embed", "input": []}, 400),
        ("/v1/embeddings", {"model": "fill", "input": "a", "dimensions": -1}, 400),
        ("/rerank", {"model": "rank", "query": "a"}, 400),
        ("/rerank", {**RANKING, "model": "embed"}, 501),
        ("/infill", {**FILLING, "model": "embed"}, 501),
        ("/infill", {"model": "fill", "input_prefix": 7}, 400),
    ],
)
def test_a_refusal_is_the_upstreams_own_and_no_fault_of_it(
    forwarding: ServerFront, upstream: Server, path: str, body: dict[str, Any], status: int
):
    through, direct = (post(server, path, body) for server in (forwarding.server, upstream))

    assert (through.status, direct.status) == (status, status), through.body
    assert through.error["message"] == direct.error["message"]
    assert forwarding.upstream()["state"] == "ready"


def test_a_streamed_infill_comes_event_by_event(forwarding: ServerFront):
    whole = post(forwarding.server, "/infill", FILLING).json

    streamed = events(post(forwarding.server, "/infill", {**FILLING, "stream": True}).body)

    assert "".join(event["content"] for event in streamed) == whole["content"]
    assert [event["stop"] for event in streamed].count(True) == 1


def test_the_openai_client_gets_vectors(forwarding: ServerFront):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{forwarding.server.port}/v1", api_key="none") as client:
        vectors = client.embeddings.create(model="embed", input=TEXTS).data

    assert [len(vector.embedding) for vector in vectors] == [32] * 3
    assert vectors[0].embedding != vectors[1].embedding


def test_a_model_is_found_by_its_name_among_those_of_one_upstream(forwarding: ServerFront):
    assert set(forwarding.upstream()["models"]) == {"embed", "rank", "fill"}
    missing = post(forwarding.server, "/rerank", {**RANKING, "model": "another"})
    assert (missing.status, missing.error["code"]) == (404, "model_not_found")
