"""Tokens one by one: chunks that nobody read in time have become one, and llama-server's clients count events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from corosrv.contracts.jobs import Chunk, TokenInfo


def split_tokens(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Splits chunks into chunks of one token each, for jobs that tell their tokens.

    Tokens that make a character together stay together, and so do those of which a stop string left a part.
    """
    for chunk in chunks:
        if len(chunk.tokens) < 2:
            yield chunk
        else:
            yield from _split(chunk)


def _split(chunk: Chunk) -> Iterator[Chunk]:
    data = chunk.text.encode()
    if data != b"".join(token.piece for token in chunk.tokens):
        yield chunk
        return
    *firsts, last = _groups(data, chunk.tokens)
    n_left = chunk.n_tokens
    for text, tokens in firsts:
        # What was held back for a while was counted when it was generated.
        n_tokens = min(len(tokens), n_left)
        n_left -= n_tokens
        yield msgspec.structs.replace(chunk, text=text, tokens=tokens, n_tokens=n_tokens, finish=None)
    yield msgspec.structs.replace(chunk, text=last[0], tokens=last[1], n_tokens=n_left)


def _groups(data: bytes, tokens: tuple[TokenInfo, ...]) -> Iterator[tuple[str, tuple[TokenInfo, ...]]]:
    """Texts of whole characters, each with its tokens."""
    begin = end = 0
    group: list[TokenInfo] = []
    for number, token in enumerate(tokens, 1):
        group.append(token)
        end += len(token.piece)
        is_boundary = end == len(data) or data[end] & 0xC0 != 0x80
        if is_boundary or number == len(tokens):
            yield data[begin:end].decode(), tuple(group)
            begin, group = end, []
