"""Reads the head of a GGUF file without libllama: the few facts that tell how much memory the model takes."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from corosrv.models.fitting.cache import CacheShape
from corosrv.models.fitting.layers import ModelKeys, cache_shape

_MAX_KEY = 65_536  # bytes
_MAX_TEXT = 16_777_216
_MAX_PAIRS = 65_536
_MAX_LAYERS = 65_536
_STRING, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_PART = re.compile(r"(.*)-00001-of-(\d{5})\.gguf", re.DOTALL)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class BrokenFile(ValueError):
    """The file is no GGUF, or ends too early. A signal within this module: such a file has no facts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from the head of a model file."""

    architecture: str
    n_ctx_train: int
    n_embd: int
    n_inner: int  # numbers in the widest feed-forward layer of one token
    n_vocab: int
    n_layers: int
    cache: CacheShape
    size: int  # of all files of the model, in bytes


def read(path: str) -> Facts | None:
    """Reads the facts of a model file; None if there is no such file, or it is not a GGUF."""
    try:
        # A fifo or a device would make us wait.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _facts(_pairs(file), size(path))
    except (OSError, ValueError, OverflowError, MemoryError):
        return None


def _pairs(file: BinaryIO) -> dict[str, Any]:
    """Returns all pairs before the vocabulary, which stands last and is long, and how many tokens that has."""
    if file.read(4) != b"GGUF":
        raise BrokenFile("no GGUF")
    _, _, n_pairs = _unpack(file, "IQQ")
    pairs: dict[str, Any] = {}
    for _ in range(min(n_pairs, _MAX_PAIRS)):
        key = _text(file, _MAX_KEY)
        if key == _TOKENS:
            pairs[_TOKENS] = _count(file)
            break
        pairs[key] = _value(file, *_unpack(file, "I"))
    return pairs


def _count(file: BinaryIO) -> int:
    """Returns the members of a list, without reading them; 0 for what is none."""
    try:
        kind, _, n_items = _unpack(file, "IIQ")
    except BrokenFile:
        return 0
    return n_items if kind == _ARRAY else 0


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


def parts(path: str) -> list[str]:
    """Returns all files that a model is split into: name-00001-of-00003.gguf and so on, those that exist; or the one
    file that it is."""
    match = _PART.fullmatch(path)
    if match is None:
        return [path]
    names = (f"{match[1]}-{number:05d}-of-{match[2]}.gguf" for number in range(1, int(match[2]) + 1))
    return [name for name in names if os.path.isfile(name)]


def size(path: str) -> int:
    """Returns the bytes of all files of a model."""
    return sum(os.stat(part).st_size for part in parts(path))


def _facts(pairs: Mapping[str, Any], size: int) -> Facts:
    architecture = pairs.get("general.architecture")
    if not isinstance(architecture, str):
        raise BrokenFile("no architecture")
    keys = ModelKeys(architecture, pairs)
    return Facts(
        architecture=architecture,
        n_ctx_train=keys.number("context_length"),
        n_embd=keys.number("embedding_length"),
        n_inner=max(keys.numbers("feed_forward_length", keys.n_layers, 0), default=0),
        n_vocab=pairs.get(_TOKENS) or keys.number("vocab_size"),
        n_layers=keys.n_layers,
        cache=cache_shape(keys),
        size=size,
    )
