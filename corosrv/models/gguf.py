"""Reads the head of a GGUF file without libllama: the few facts that tell how much memory the model takes."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

_MAX_KEY = 65_536  # bytes
_MAX_TEXT = 16_777_216
_MAX_PAIRS = 65_536
_MAX_LAYERS = 65_536
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class BrokenFile(ValueError):
    """The file is no GGUF, or ends too early. A signal within this module: such a file has no facts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from the head of a model file."""

    architecture: str
    n_ctx_train: int
    n_embd: int
    kv_bytes_per_token: int  # of keys and values in 16 bits
    size: int  # of the file, in bytes


def read(path: str) -> Facts | None:
    """Reads the facts of a model file; None if there is no such file, or it is not a GGUF."""
    try:
        # A fifo or a device would make us wait.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _facts(_pairs(file), os.stat(path).st_size)
    except (OSError, ValueError, OverflowError, MemoryError):
        return None


def _pairs(file: BinaryIO) -> dict[str, Any]:
    """Yields all pairs before the vocabulary, which stands last and is long."""
    if file.read(4) != b"GGUF":
        raise BrokenFile("no GGUF")
    _, _, n_pairs = _unpack(file, "IQQ")
    pairs: dict[str, Any] = {}
    for _ in range(min(n_pairs, _MAX_PAIRS)):
        key = _text(file, _MAX_KEY)
        if key.startswith("tokenizer."):
            break
        pairs[key] = _value(file, *_unpack(file, "I"))
    return pairs


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _text(file, _MAX_TEXT)
    if kind == _ARRAY:
        item, n_items = _unpack(file, "IQ")
        if n_items > _MAX_LAYERS or item == _ARRAY:
            raise BrokenFile("an array that is no list of layers")
        return [_value(file, item) for _ in range(n_items)]
    if kind not in _NUMBERS:
        raise BrokenFile(f"a value of the unknown kind {kind}")
    return _unpack(file, _NUMBERS[kind])[0]


def _text(file: BinaryIO, limit: int) -> str:
    (size,) = _unpack(file, "Q")
    if size > limit:
        raise BrokenFile(f"a text of {size} bytes")
    return _bytes(file, size).decode("utf-8", "replace")


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    return struct.unpack("<" + layout, _bytes(file, struct.calcsize("<" + layout)))


def _bytes(file: BinaryIO, size: int) -> bytes:
    read = file.read(size)
    if len(read) != size:
        raise BrokenFile("the file ends too early")
    return read


def _facts(pairs: Mapping[str, Any], size: int) -> Facts:
    architecture = pairs.get("general.architecture")
    if not isinstance(architecture, str):
        raise BrokenFile("no architecture")

    def number(name: str, default: int = 0) -> int:
        value = pairs.get(f"{architecture}.{name}", default)
        return value if isinstance(value, int) else default

    n_layers, n_embd = number("block_count"), number("embedding_length")
    n_heads = max(number("attention.head_count", 1), 1)
    head = n_embd // n_heads
    widths = number("attention.key_length", head) + number("attention.value_length", head)
    of_layers = pairs.get(f"{architecture}.attention.head_count_kv", n_heads)
    if isinstance(of_layers, list):
        kv_heads = sum(value for value in of_layers if isinstance(value, int))
    else:
        kv_heads = n_layers * number("attention.head_count_kv", n_heads)
    return Facts(architecture, number("context_length"), n_embd, 2 * kv_heads * widths, size)
