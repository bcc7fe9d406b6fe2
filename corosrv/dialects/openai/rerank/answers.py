"""Reranking, the way out: scores to answers."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.generation.vectors import floats
from corosrv.dialects.openai.embeddings.answers import usage
from corosrv.dialects.openai.rerank import schema
from corosrv.dialects.openai.rerank.answer_types import Ranked, Ranking, ScoredText


def best(vectors: Sequence[bytes], top_n: int | None) -> list[tuple[int, float]]:
    """Returns number and score of the documents, best first; those with equal scores as they were sent."""
    scores = [(i, floats(vector)[0]) for i, vector in enumerate(vectors)]
    return sorted(scores, key=lambda scored: -scored[1])[:top_n]


def ranking(ranked: Sequence[tuple[int, float]], prompt_tokens: Sequence[int], card: ModelCard) -> Ranking:
    return Ranking(card.id, "list", usage(prompt_tokens), [Ranked(i, score) for i, score in ranked])


def scored_texts(ranked: Sequence[tuple[int, float]], body: schema.RerankBody) -> list[ScoredText]:
    """Makes the answer that text-embeddings-inference gives."""
    if body.return_text and body.texts:
        return [ScoredText(i, score, body.texts[i]) for i, score in ranked]
    return [ScoredText(i, score) for i, score in ranked]
