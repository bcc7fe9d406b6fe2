"""Lists of tokens and how likely they were, from the bytes in which the native core has them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from corosrv.contracts.jobs import Candidate, TokenInfo

# corosrv_likelihood: token, logprob, how many of those behind it stood in its place, bytes of its piece.
_ENTRY = struct.Struct("=ifii")


def token_infos(entries: bytes, pieces: bytes) -> tuple[TokenInfo, ...]:
    """The tokens that came. `pieces`: what each entry adds to the text, one behind the other."""
    read = _read(entries, pieces)
    return tuple(
        # The first token of a prompt has a NaN, which nothing equals.
        TokenInfo(token, piece, logprob if logprob == logprob else None, tuple(_top(read, n_top)))
        for token, logprob, n_top, piece in read
    )


def _top(read: Iterator[tuple[int, float, int, bytes]], n_top: int) -> Iterator[Candidate]:
    for _ in range(n_top):
        token, logprob, _, piece = next(read)
        yield Candidate(token, piece, logprob)


def _read(entries: bytes, pieces: bytes) -> Iterator[tuple[int, float, int, bytes]]:
    begin = 0
    for token, logprob, n_top, size in _ENTRY.iter_unpack(entries):
        yield token, logprob, n_top, pieces[begin : begin + size]
        begin += size
