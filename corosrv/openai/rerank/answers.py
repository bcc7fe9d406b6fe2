"""Reranking, the way out: scores to answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corosrv.generation.vectors import floats
from corosrv.jobs import ModelCard
from corosrv.openai.embeddings.answers import usage
from corosrv.openai.rerank import schema


def best(vectors: Sequence[bytes], top_n: int | None) -> list[tuple[int, float]]:
    """Number and score of the documents, best first; those with equal scores as they were sent."""
    scores = [(i, floats(vector)[0]) for i, vector in enumerate(vectors)]
    return sorted(scores, key=lambda one: -one[1])[:top_n]


def whole(ranked: Sequence[tuple[int, float]], prompt_tokens: Sequence[int], card: ModelCard) -> dict[str, Any]:
    return {
        "model": card.id,
        "object": "list",
        "usage": usage(prompt_tokens),
        "results": [{"index": i, "relevance_score": score} for i, score in ranked],
    }


def of_texts(ranked: Sequence[tuple[int, float]], body: schema.RerankBody) -> list[dict[str, Any]]:
    """Makes the answer that text-embeddings-inference gives."""
    found: list[dict[str, Any]] = [{"index": i, "score": score} for i, score in ranked]
    if body.return_text and body.texts:
        for one in found:
            one["text"] = body.texts[one["index"]]
    return found
