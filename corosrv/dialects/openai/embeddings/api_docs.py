"""Describes the endpoints of embeddings and their answers for the API document."""

from __future__ import annotations

from corosrv.dialects.openai.embeddings import schema
from corosrv.dialects.openai.embeddings.answer_types import EmbeddingList, NativeEmbedding
from corosrv.web.http.openapi import GENERATES, operation
from corosrv.web.http.terms import QueueHeaders

_TAG = "Embeddings"
_STATUSES = (*GENERATES, 501)


embed = operation(
    _TAG,
    "Turn texts into vectors",
    body=schema.EmbeddingBody,
    answer=EmbeddingList,
    headers=QueueHeaders,
    statuses=_STATUSES,
    examples={"Two texts": {"input": ["The sea is wide.", "The ocean is vast."]}},
)
embed_native = operation(
    _TAG,
    "Turn texts into vectors, as llama-server does",
    body=schema.NativeBody,
    answer=list[NativeEmbedding],
    headers=QueueHeaders,
    statuses=_STATUSES,
    examples={"A text": {"content": "The sea is wide."}},
)
