"""Ranks upstreams for a key so that a change of one upstream changes the rank of no others (rendezvous hashing)."""

from __future__ import annotations

import math
from hashlib import blake2b

_BITS = 52  # of a hash that are used: a float between 0 and 1 holds them, and is neither


def score(key: str, upstream: str, weight: float = 1.0) -> float:
    """Returns how well an upstream suits a key, the same in every process: the one with the highest score has the key.

    Of many keys an upstream has its weight's share.
    """
    text = f"{upstream}\0{key}".encode(errors="surrogatepass")
    digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> (64 - _BITS)
    return -weight / math.log((digest + 0.5) / (1 << _BITS))
