"""Types of the answers of embeddings: the answers are made of them, and the API document describes them."""

from __future__ import annotations

from typing import Literal

import msgspec


class ReadUsage(msgspec.Struct):
    """Usage of a job that generates nothing: only the tokens read count."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector: numbers, or their float32, little-endian, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    encoding_format: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: ReadUsage


class NativeEmbedding(msgspec.Struct):
    """The vectors of one input: one, or one of each token."""

    index: int
    embedding: list[list[float]]
