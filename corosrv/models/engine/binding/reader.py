"""The native end of one job's reader, and its chunks as values.

`token_infos` reads the lists of tokens and how likely they were from the bytes in which the native core has them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from corosrv.contracts.jobs import Candidate, Chunk, Finish, TokenInfo
from corosrv.models.engine.binding.library import FLOAT_BYTES, INT32_BYTES, check, fail, ffi, lib, text_of

# corosrv_likelihood: token, logprob, how many of those behind it stood in its place, bytes of its piece.
_ENTRY = struct.Struct("=ifii")


def token_infos(entries: bytes, pieces: bytes) -> tuple[TokenInfo, ...]:
    """Returns the tokens that came. `pieces`: what each entry adds to the text, one behind the other."""
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


_FINISH = (None, Finish.STOP, Finish.LENGTH, Finish.CANCELLED, Finish.ERROR)
_LIKELIHOOD_BYTES = ffi.sizeof("corosrv_likelihood")
# Looked up once: these are needed for every chunk.
_UNFINISHED = lib.COROSRV_UNFINISHED
_reader_take = lib.corosrv_reader_take
_unpack = ffi.unpack
_buffer = ffi.buffer


class NativeReader:
    """Handle of a corosrv_reader. Closed when dropped, if nobody did it before."""

    __slots__ = ("_batch", "_handle", "fd")

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.corosrv_reader_close)
        # Negative where the process had no descriptor left: has_chunks() is to be asked again and again then.
        self.fd: int = lib.corosrv_reader_fd(handle)
        self._batch = ffi.new("corosrv_batch *")

    def take(self, clear: bool = True) -> list[Chunk]:
        """Takes all unread chunks, perhaps none. Clears the descriptor; whoever watches its edges may save that."""
        batch = self._batch
        if code := _reader_take(self._handle, clear, batch):
            fail(code)
        n_chunks, chunks = batch.n_chunks, batch.chunks
        if n_chunks == 1:
            return [_chunk(chunks[0])]
        return [_chunk(chunks[i]) for i in range(n_chunks)]

    def has_chunks(self) -> bool:
        """Returns whether take() would return chunks. Never waits."""
        return bool(lib.corosrv_reader_has_chunks(self._handle))

    def cancel(self) -> None:
        check(lib.corosrv_reader_cancel(self._handle))

    def end_thoughts(self) -> None:
        check(lib.corosrv_reader_end_thoughts(self._handle))

    def close(self) -> None:
        ffi.release(self._handle)


def _chunk(chunk: Any) -> Chunk:
    text = _unpack(chunk.text, chunk.text_size).decode()
    finish = chunk.finish
    tokens = _token_infos(chunk.tokens) if chunk.tokens.n_entries else ()
    prompt_info = _token_infos(chunk.prompt_info) if chunk.prompt_info.n_entries else ()
    if finish == _UNFINISHED and not tokens and not prompt_info and chunk.read_tokens < 0:
        if chunk.n_ids:
            ids, state = _ids(chunk), _state(chunk)
            # With what another engine's figures are added to, should this one be lost.
            return Chunk(
                chunk.index,
                text,
                chunk.n_tokens,
                cached_tokens=chunk.cached_tokens,
                prompt_ms=chunk.prompt_ms,
                decode_ms=chunk.decode_ms,
                compute_ms=chunk.compute_ms,
                drafted_tokens=chunk.drafted_tokens,
                accepted_tokens=chunk.accepted_tokens,
                ids=ids,
                state=state,
            )
        return Chunk(chunk.index, text, chunk.n_tokens, compute_ms=chunk.compute_ms)
    return Chunk(
        chunk.index,
        text,
        chunk.n_tokens,
        _FINISH[finish],
        chunk.prompt_tokens,
        chunk.cached_tokens,
        chunk.prompt_ms,
        chunk.decode_ms,
        _unpack(chunk.stopping_word.data, chunk.stopping_word.size).decode(),
        text_of(chunk.code),
        chunk.slot,
        chunk.n_dropped,
        chunk.compute_ms,
        drafted_tokens=chunk.drafted_tokens,
        accepted_tokens=chunk.accepted_tokens,
        tokens=tokens,
        prompt_info=prompt_info,
        read_tokens=chunk.read_tokens,
        vector=bytes(_buffer(chunk.vector, FLOAT_BYTES * chunk.n_vector)) if chunk.n_vector else b"",
        ids=_ids(chunk) if chunk.n_ids else b"",
        state=_state(chunk) if chunk.n_ids else b"",
    )


def _ids(chunk: Any) -> bytes:
    return bytes(_buffer(chunk.ids, INT32_BYTES * chunk.n_ids))


def _state(chunk: Any) -> bytes:
    return bytes(_buffer(chunk.state, chunk.n_state))


def _token_infos(tokens: Any) -> tuple[TokenInfo, ...]:
    size = tokens.n_entries * _LIKELIHOOD_BYTES
    return token_infos(bytes(_buffer(tokens.entries, size)), bytes(_unpack(tokens.pieces, tokens.pieces_size)))
