"""The vectors of a job: what embeddings and scores are read from."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from corosrv.contracts.jobs import Chunk

_FLOAT_BYTES = 4


def in_order(chunks: Iterable[Chunk]) -> list[bytes]:
    """Returns each task's vector. Raises JobFailed when a task ended in an error."""
    return [last.vector for last in _terminal(chunks)]


def prompt_tokens(chunks: Iterable[Chunk]) -> list[int]:
    """Returns each task's number of prompt tokens, in the order of the tasks. Raises as `in_order` does."""
    return [last.prompt_tokens for last in _terminal(chunks)]


def _terminal(chunks: Iterable[Chunk]) -> list[Chunk]:
    last: dict[int, Chunk] = {}
    for chunk in chunks:
        if chunk.finish is not None:
            last[chunk.index] = chunk
    return [last[index] for index in sorted(last)]


def floats(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))
