"""Types of the answers of reranking: the answers are made of them, and the API document describes them."""

from __future__ import annotations

from typing import Literal

import msgspec

from corosrv.dialects.openai.embeddings.answer_types import ReadUsage


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
