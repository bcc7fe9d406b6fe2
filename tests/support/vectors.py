"""Embeddings for tests: asked for, unpacked and compared."""

import math
import struct
from collections.abc import Sequence

from corosrv.contracts.jobs import EmbedJob, Finish, Text
from corosrv.models.engine import Chunk, Engine
from tests.support.engines import read_all


def vector(chunk: Chunk) -> tuple[float, ...]:
    return struct.unpack(f"<{len(chunk.vector) // 4}f", chunk.vector)


def embed(engine: Engine, *texts: str, **chosen) -> list[tuple[float, ...]]:
    """The vector of each text, in order; every task ends once, and well."""
    chunks = read_all(engine.submit(EmbedJob(tuple(map(Text, texts)), **chosen)))
    assert sorted(chunk.index for chunk in chunks) == list(range(len(texts)))
    assert all(chunk.finish is Finish.STOP for chunk in chunks)
    return [vector(chunk) for chunk in sorted(chunks, key=lambda chunk: chunk.index)]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(map(float.__mul__, a, b)) / math.hypot(*a) / math.hypot(*b)
