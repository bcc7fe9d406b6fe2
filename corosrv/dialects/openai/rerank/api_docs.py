"""Describes the endpoint of reranking and its answers for the API document."""

from __future__ import annotations

from corosrv.dialects.openai.rerank import schema
from corosrv.dialects.openai.rerank.answer_types import Ranking, ScoredText
from corosrv.web.http.openapi import GENERATES, operation
from corosrv.web.http.terms import QueueHeaders

rerank = operation(
    "Embeddings",
    "Rank documents for a query",
    "`texts` in the place of `documents` asks for a bare list of `index` and `score`.",
    body=schema.RerankBody,
    answer=Ranking | list[ScoredText],
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"Two documents": {"query": "What is the sea?", "documents": ["Water.", "Stone."]}},
)
