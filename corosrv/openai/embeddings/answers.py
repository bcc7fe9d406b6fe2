"""Embeddings, the way out: vectors to answers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from corosrv.generation.vectors import floats
from corosrv.jobs import ModelCard


def usage(prompt_tokens: Sequence[int]) -> dict[str, int]:
    """Returns the usage of a job that generates nothing: only the tokens read count."""
    total = sum(prompt_tokens)
    return {"prompt_tokens": total, "total_tokens": total}


def whole(
    vectors: Sequence[bytes], prompt_tokens: Sequence[int], card: ModelCard, in_base64: bool = False
) -> dict[str, Any]:
    """OpenAI's shape; in base64 a vector is its float32, little-endian."""
    write, said = (_base64, {"encoding_format": "base64"}) if in_base64 else (floats, {})
    data = [{"object": "embedding", "index": i, "embedding": write(vector), **said} for i, vector in enumerate(vectors)]
    return {"object": "list", "model": card.id, "data": data, "usage": usage(prompt_tokens)}


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def native(vectors: Sequence[bytes], prompt_tokens: Sequence[int], pooled: bool) -> list[dict[str, Any]]:
    """llama-server's shape: a list of vectors for each input, one of each token if they are not pooled."""
    counts = [1 if pooled else n_tokens for n_tokens in prompt_tokens]
    return [
        {"index": i, "embedding": _rows(floats(vector), n_rows)}
        for i, (vector, n_rows) in enumerate(zip(vectors, counts, strict=True))
    ]


def _rows(numbers: list[float], n_rows: int) -> list[list[float]]:
    size = len(numbers) // n_rows
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]
