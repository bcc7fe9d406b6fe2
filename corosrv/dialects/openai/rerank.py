"""Reranking: a body to a job, scores to an answer, and the endpoint under its four names.

It goes over any Worker whose model ranks. The types of body and answer are those of the API document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from flask import Blueprint, Response
from msgspec import Meta

from corosrv.base.errors import NotOffered, Refused
from corosrv.contracts.jobs import ModelCard, RerankJob
from corosrv.dialects.generation.call import floats, prompt_tokens_of, vectors_of
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.generation.fields import ModelName, Priority
from corosrv.dialects.openai import events
from corosrv.dialects.openai.embeddings import ReadUsage, usage
from corosrv.formats.bodies import check_text
from corosrv.web.http.openapi import GENERATES, operation
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.http.terms import QueueHeaders


class Ranked(msgspec.Struct):
    index: int
    relevance_score: float


class Ranking(msgspec.Struct):
    """The documents, best first."""

    model: str
    object: Literal["list"]
    usage: ReadUsage
    results: list[Ranked]


class ScoredText(msgspec.Struct):
    index: int
    score: float
    text: str | msgspec.UnsetType = msgspec.UNSET


MAX_DOCUMENTS = 2048

Documents = Annotated[list[str], Meta(min_length=1, max_length=MAX_DOCUMENTS)]


class RerankBody(msgspec.Struct, kw_only=True):
    """`texts` in the place of `documents` asks for the answer that text-embeddings-inference gives."""

    query: Annotated[str, Meta(min_length=1)]
    model: ModelName | None = None
    priority: Priority | None = None
    documents: Documents | None = None
    texts: Documents | None = None
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_text: bool | None = None


decoder = msgspec.json.Decoder(RerankBody)


def best(vectors: Sequence[bytes], top_n: int | None) -> list[tuple[int, float]]:
    """Returns number and score of the documents, best first; those with equal scores as they were sent."""
    scores = [(i, floats(vector)[0]) for i, vector in enumerate(vectors)]
    return sorted(scores, key=lambda scored: -scored[1])[:top_n]


def ranking(ranked: Sequence[tuple[int, float]], prompt_tokens: Sequence[int], card: ModelCard) -> Ranking:
    return Ranking(card.id, "list", usage(prompt_tokens), [Ranked(i, score) for i, score in ranked])


def scored_texts(ranked: Sequence[tuple[int, float]], body: RerankBody) -> list[ScoredText]:
    """Makes the answer that text-embeddings-inference gives."""
    if body.return_text and body.texts:
        return [ScoredText(i, score, body.texts[i]) for i, score in ranked]
    return [ScoredText(i, score) for i, score in ranked]


rerank_operation = operation(
    "Embeddings",
    "Rank documents for a query",
    "`texts` in the place of `documents` asks for a bare list of `index` and `score`.",
    body=RerankBody,
    answer=Ranking | list[ScoredText],
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"Two documents": {"query": "What is the sea?", "documents": ["Water.", "Stone."]}},
)


def job(body: RerankBody, card: ModelCard) -> RerankJob:
    """Makes a job with one score for each document. Raises Refused, which names the parameter."""
    if "rerank" not in card.capabilities:
        raise NotOffered(f"the model '{card.id}' ranks no documents")
    if body.documents and body.texts:
        raise Refused("documents and texts are not allowed together", "texts")
    param, documents = ("texts", body.texts) if body.texts else ("documents", body.documents)
    if not documents:
        raise Refused("documents is required", "documents", "missing_required_parameter")
    checked = tuple(check_text(document, f"{param}[{i}]") for i, document in enumerate(documents))
    return RerankJob(check_text(body.query, "query"), checked, body.model)


def blueprint(flow: RequestFlow) -> Blueprint:
    routes = Blueprint("rerank", __name__)
    register_errors(routes, events.body)

    @routes.post("/v1/rerank")
    @routes.post("/rerank", endpoint="short")
    @routes.post("/v1/reranking", endpoint="reranking")
    @routes.post("/reranking", endpoint="reranking_short")
    @flow.once
    @rerank_operation
    def rerank() -> Response:
        body = flow.receive(decoder)
        card = flow.worker.card(body.model)
        chunks = flow.collect(job(body, card), body.priority)
        ranked = best(vectors_of(chunks), body.top_n)
        if body.texts:
            return json_response(scored_texts(ranked, body))
        return json_response(ranking(ranked, prompt_tokens_of(chunks), card))

    return routes
