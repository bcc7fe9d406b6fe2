"""Embeddings, the way out: vectors to answers."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from corosrv.contracts.jobs import ModelCard
from corosrv.dialects.generation.vectors import floats
from corosrv.dialects.openai.embeddings.answer_types import Embedding, EmbeddingList, NativeEmbedding, ReadUsage


def usage(prompt_tokens: Sequence[int]) -> ReadUsage:
    """Returns the usage of a job that generates nothing: only the tokens read count."""
    total = sum(prompt_tokens)
    return ReadUsage(total, total)


def embeddings(
    vectors: Sequence[bytes], prompt_tokens: Sequence[int], card: ModelCard, in_base64: bool = False
) -> EmbeddingList:
    """Makes OpenAI's answer; in base64 a vector is its float32, little-endian."""
    encode = _in_base64 if in_base64 else _in_numbers
    return EmbeddingList("list", card.id, [encode(i, vector) for i, vector in enumerate(vectors)], usage(prompt_tokens))


def _in_numbers(index: int, vector: bytes) -> Embedding:
    return Embedding("embedding", index, floats(vector))


def _in_base64(index: int, vector: bytes) -> Embedding:
    return Embedding("embedding", index, base64.b64encode(vector).decode(), "base64")


def native(vectors: Sequence[bytes], prompt_tokens: Sequence[int], pooled: bool) -> list[NativeEmbedding]:
    """Makes llama-server's answer: a list of vectors for each input, one of each token if they are not pooled."""
    counts = [1 if pooled else n_tokens for n_tokens in prompt_tokens]
    return [
        NativeEmbedding(i, _rows(floats(vector), n_rows))
        for i, (vector, n_rows) in enumerate(zip(vectors, counts, strict=True))
    ]


def _rows(numbers: list[float], n_rows: int) -> list[list[float]]:
    size = len(numbers) // n_rows
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]
