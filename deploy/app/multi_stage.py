"""Stages that call each other by what they can do: corosrv serve deploy/app/multi_stage.py:app --workers 2

    curl http://127.0.0.1:8080/v2/models/search/infer -d '{"inputs": [
      {"name": "query", "datatype": "BYTES", "shape": [1], "data": ["cold"]},
      {"name": "documents", "datatype": "BYTES", "shape": [3], "data": ["ice and snow", "a hot day", "cold rain"]}]}'

The first stage knows no other by name. It asks for a capability, and the server finds who has it: here a function of
the same file, elsewhere a worker with a graphics card.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from corosrv.worker import App, Context, InvalidInput, ModelInferRequest, Tensor, TensorSpec

app = App("multi-stage")

TEXTS = TensorSpec("texts", "BYTES", [-1])
VECTORS = TensorSpec("vectors", "FP32", [-1, -1])
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@app.capability(
    type="embed", unit="letters", inputs=[TEXTS], outputs=[VECTORS], batch={"max_size": 8, "max_delay_ms": 2}
)
def embed(requests: list[ModelInferRequest]) -> list[dict[str, Any]]:
    """Turns each text into how often it has each letter. Calls that come together are one batch."""
    return [{"vectors": _vectors(request["texts"].data)} for request in requests]


def _vectors(texts: list[bytes]) -> Tensor:
    counts = [Counter(text.decode().lower()) for text in texts]
    numbers = [float(count[letter]) for count in counts for letter in LETTERS]
    return Tensor("vectors", "FP32", [len(texts), len(LETTERS)], data=numbers)


@app.capability(type="rank", inputs=[VECTORS], outputs=[TensorSpec("order", "INT32", [-1])])
def rank(request: ModelInferRequest) -> dict[str, Any]:
    """Orders all vectors but the first by how near they are to it."""
    n_vectors, size = request["vectors"].shape
    numbers = request["vectors"].data
    query, *documents = (numbers[at * size : (at + 1) * size] for at in range(n_vectors))
    scores = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    return {"order": sorted(range(len(scores)), key=lambda at: -scores[at])}


@app.model(
    "search",
    inputs=[TensorSpec("query", "BYTES", [1]), TensorSpec("documents", "BYTES", [-1])],
    outputs=[TensorSpec("results", "BYTES", [-1])],
)
def search(request: ModelInferRequest, context: Context) -> dict[str, Any]:
    """Orders documents by how well they fit a query, with the help of two other stages."""
    documents = request["documents"].data
    if not documents:
        raise InvalidInput("there are no documents to search in")
    texts = Tensor("texts", "BYTES", [1 + len(documents)], data=[*request["query"].data, *documents])
    embedded = context.call(capability={"type": "embed"}, inputs={"texts": texts})
    ranked = context.call(capability={"type": "rank"}, inputs={"vectors": embedded["vectors"]})
    return {"results": [documents[at] for at in ranked["order"].data]}
