"""Reads `prompt_embeds`: embedding rows that a client has in place of a prompt, as base64 of plain numbers.

`in_order` and `prompt_tokens` return the vectors of a job, which embeddings and scores are made of.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import NotSupported, Refused
from corosrv.contracts.jobs import Chunk, ModelCard, Rows

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


PARAM = "prompt_embeds"
NUMBER_BYTES = {"f32": 4, "f16": 2, "bf16": 2}  # by dtype
_KEYS = {"dtype", "shape", "data"}
_AT_ONCE = 262_144  # characters of base64; more are decoded by call_long
_PIECE = 1 << 16  # characters, and numbers, between two chances of other threads; of base64 whole groups of 4
_ALPHABET = re.compile(r"[A-Za-z0-9+/]*")
_LAST = re.compile(r"[A-Za-z0-9+/]*={0,2}")  # padding is allowed at the very end alone


def _call_here(function: Callable[..., Rows], *arguments: Any) -> Rows:
    return function(*arguments)


@dataclass(frozen=True, slots=True)
class EmbedsReader:
    """Reads the rows of one request."""

    is_enabled: bool  # by the setting prompt_embeds
    find_card: Callable[[], ModelCard]  # of the model, once it is loaded
    call_long: Callable[..., Rows] = (
        _call_here  # calls what computes for long, as corosrv.base.waits.call_in_thread does
    )

    def read(self, value: Any, has_prompt: bool) -> Rows:
        """Checks and decodes the field's value; waits while many rows are decoded. Raises Refused.

        Nothing of the size that the request claims is allocated before it is known to be right.
        """
        if not self.is_enabled:
            raise _refused("not taken by this server: set COROSRV_PROMPT_EMBEDS=1", "disabled")
        if has_prompt:
            raise _refused("send either prompt or prompt_embeds", "and_prompt")
        card = self.find_card()
        if not card.row_width:
            raise _refused("this model takes no embedding rows", "disabled")
        dtype, n, data = _check_head(value, card)
        size = NUMBER_BYTES[dtype] * n * card.row_width
        _check_length(data, size)
        if len(data) <= _AT_ONCE:
            return _decode(data, dtype, card.row_width)
        return self.call_long(_decode, data, dtype, card.row_width)


def _check_head(value: Any, card: ModelCard) -> tuple[str, int, str]:
    """Returns the dtype, the number of rows and the base64 text."""
    if not isinstance(value, dict):
        words = "must be an object with dtype, shape and data; no tensor file of pickle, torch or numpy is read"
        raise _refused(words, "bad_shape")
    if unknown := value.keys() - _KEYS:
        raise _refused(f"has dtype, shape and data, and no {min(unknown)[:40]!r}", "bad_shape")
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in NUMBER_BYTES:
        raise _refused(f"dtype must be one of {', '.join(NUMBER_BYTES)}", "bad_dtype")
    n = _check_shape(value.get("shape"), card)
    data = value.get("data")
    if not isinstance(data, str):
        raise _refused("data must be a string of base64", "bad_base64")
    return dtype, n, data


def _check_shape(shape: Any, card: ModelCard) -> int:
    """Returns the number of rows."""
    if not isinstance(shape, list) or len(shape) != 2 or any(type(extent) is not int for extent in shape):
        raise _refused("shape must be two integers: rows, and numbers of a row", "bad_shape")
    n: int = shape[0]
    width: int = shape[1]
    if n < 1:
        raise _refused("shape: there must be at least one row", "bad_shape")
    if n > card.max_rows:
        raise _refused(f"shape: {n} rows, and the context has room for {card.max_rows}", "too_long")
    if width != card.row_width:
        words = f"shape: a row of this model has {card.row_width} numbers, not {width}"
        raise _refused(words, "bad_shape")
    return n


def _check_length(data: str, size: int) -> None:
    if len(data) % 4:
        raise _not_base64()
    length = len(data) // 4 * 3 - data[-2:].count("=")
    if length != size:
        raise _refused(f"data stands for {length} bytes, and the shape for {size}", "length")


def _decode(data: str, dtype: str, width: int) -> Rows:
    stored = _decode_base64(data)
    rows = stored if dtype == "f32" else _widen_halves(stored) if dtype == "f16" else _widen_brains(stored)
    _check_finite(rows)
    return Rows.of_data(rows, width)


def _decode_base64(data: str) -> bytes:
    pieces = []
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        if not (_LAST if start + _PIECE >= len(data) else _ALPHABET).fullmatch(piece):
            raise _not_base64()
        pieces.append(binascii.a2b_base64(piece))
    return b"".join(pieces)


def _widen_halves(stored: bytes) -> bytes:
    numbers = array("f")
    for start in range(0, len(stored), _PIECE):
        piece = stored[start : start + _PIECE]
        numbers.extend(struct.unpack(f"<{len(piece) // 2}e", piece))
    return numbers.tobytes()


def _widen_brains(stored: bytes) -> bytes:
    """Puts zeros below bfloat16 numbers, which are the upper halves of float32 numbers."""
    rows = bytearray(2 * len(stored))
    rows[2::4] = stored[0::2]
    rows[3::4] = stored[1::2]
    return bytes(rows)


def _check_finite(rows: bytes) -> None:
    numbers = memoryview(rows).cast("f")
    for start in range(0, len(numbers), _PIECE):
        # A sum of so few float32 numbers is only infinite, or none, where one of them is.
        if not math.isfinite(sum(numbers[start : start + _PIECE])):
            raise _refused("a number in data is infinite or not a number", "not_finite")


def _refused(words: str, code: str) -> Refused:
    """Makes the error for rows that are not as they must be; `code` says in which way."""
    return Refused(f"{PARAM}: {words}", PARAM, f"embeds_{code}")


def _not_base64() -> Refused:
    words = "data must be base64: A-Z, a-z, 0-9, + and /, padded with =, without spaces and line breaks"
    return _refused(words, "bad_base64")


def refuse_with_rows(has_echo: bool, has_suffix: bool) -> None:
    """Raises NotSupported for what only a prompt of text has."""
    if has_echo:
        raise NotSupported("echo: a prompt of embedding rows has no text, and no logprobs", "echo")
    if has_suffix:
        raise NotSupported("suffix: only together with prompts that are strings", "suffix")
