"""The vectors of a job: what embeddings and scores are read from."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from corosrv.generation.tally import check
from corosrv.jobs import Chunk

_FLOAT_BYTES = 4


def in_order(chunks: Iterable[Chunk]) -> list[bytes]:
    """Each task's vector. Raises JobFailed when a task ended in an error."""
    found: dict[int, bytes] = {}
    for chunk in chunks:
        check(chunk)
        if chunk.finish is not None:
            found[chunk.index] = chunk.vector
    return [found[index] for index in sorted(found)]


def floats(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // _FLOAT_BYTES}f", vector))
