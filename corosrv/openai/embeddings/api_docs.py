"""Describes the endpoints of embeddings and their answers for the API document."""

from __future__ import annotations

from typing import Literal

import msgspec

from corosrv.http.operation import GENERATES, operation
from corosrv.openai.embeddings import schema

_TAG = "Embeddings"
_STATUSES = (*GENERATES, 501)


class ReadUsage(msgspec.Struct):
    """Usage of a job that generates nothing: only the tokens read count."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector: numbers, or their float32, little-endian, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: ReadUsage


class NativeEmbedding(msgspec.Struct):
    """The vectors of one input: one, or one of each token."""

    index: int
    embedding: list[list[float]]


embed = operation(
    _TAG,
    "Turn texts into vectors",
    body=schema.EmbeddingBody,
    answer=EmbeddingList,
    statuses=_STATUSES,
    examples={"Two texts": {"input": ["The sea is wide.", "The ocean is vast."]}},
)
embed_native = operation(
    _TAG,
    "Turn texts into vectors, as llama-server does",
    body=schema.NativeBody,
    answer=list[NativeEmbedding],
    statuses=_STATUSES,
    examples={"A text": {"content": "The sea is wide."}},
)
