"""Describes the endpoint of reranking and its answers for the API document."""

from __future__ import annotations

from typing import Literal

import msgspec

from corosrv.http.operation import GENERATES, operation
from corosrv.openai.embeddings.api_docs import ReadUsage
from corosrv.openai.rerank import schema


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


rerank = operation(
    "Embeddings",
    "Rank documents for a query",
    "`texts` in the place of `documents` asks for a bare list of `index` and `score`.",
    body=schema.RerankBody,
    answer=Ranking | list[ScoredText],
    statuses=(*GENERATES, 501),
    examples={"Two documents": {"query": "What is the sea?", "documents": ["Water.", "Stone."]}},
)
