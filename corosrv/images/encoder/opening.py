"""Opens a projector file, and refuses one that cannot be used before images come.

It says by name why a model cannot read the rows of a projector, where libmtmd itself would make nonsense of them. A
damaged file may open, and end the process at its first use, so a small image is encoded as a trial. `GgufHead` reads
what stands before the tensors, with ggml's own reader.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import LoadError
from corosrv.images.encoder.encoding import EncodingFailed
from corosrv.images.encoder.mtmd import LogTail, Projector, ProjectorOptions
from corosrv.images.transfer.messages import MROPE, NON_CAUSAL
from corosrv.models.engine import libllama

_STRING = 8  # gguf's type of a value
_PROJECTOR_KINDS = ("clip.vision.projector_type", "clip.projector_type")  # keys


class _InitParameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


@functools.cache
def open_ggml() -> Any:
    """Opens the library that libllama uses, and declares the functions that llama-cpp-python does not."""
    ggml = ctypes.CDLL(str(libllama.folder() / "libggml-base.so"))
    for name, takes, gives in (
        ("gguf_init_from_file", [ctypes.c_char_p, _InitParameters], ctypes.c_void_p),
        ("gguf_free", [ctypes.c_void_p], None),
        ("gguf_find_key", [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_int64),
        ("gguf_get_kv_type", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int),
        ("gguf_get_val_str", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_char_p),
        ("gguf_get_data_offset", [ctypes.c_void_p], ctypes.c_size_t),
        ("gguf_get_n_tensors", [ctypes.c_void_p], ctypes.c_int64),
        ("gguf_get_tensor_offset", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_size_t),
        ("gguf_get_tensor_size", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_size_t),
    ):
        function = getattr(ggml, name)
        function.argtypes, function.restype = takes, gives
    return ggml


class GgufHead:
    """Owns the parsed head of a file. Use it in a with block."""

    def __init__(self, path: str) -> None:
        """Reads the head. Raises LoadError for a file that is none."""
        self._ggml = open_ggml()
        self._path = path
        self._head = self._ggml.gguf_init_from_file(path.encode(), _InitParameters(True, None))
        if not self._head:
            raise LoadError(f"{path} cannot be opened as a GGUF file")

    def text(self, key: str) -> str:
        """Returns a value that is a text; empty where there is none."""
        index = self._ggml.gguf_find_key(self._head, key.encode())
        if index < 0 or self._ggml.gguf_get_kv_type(self._head, index) != _STRING:
            return ""
        return str(self._ggml.gguf_get_val_str(self._head, index).decode("utf-8", "replace"))

    @property
    def projector_kind(self) -> str:
        """Returns the type that a projector file says it is of."""
        return next(filter(None, map(self.text, _PROJECTOR_KINDS)), "of no named type")

    def check_length(self) -> None:
        """Raises LoadError for a file that ends within its tensors: libllama and libmtmd may read on regardless."""
        needed = max(map(self._end, range(self._ggml.gguf_get_n_tensors(self._head))), default=0)
        if (n_bytes := os.stat(self._path).st_size) < needed:
            raise LoadError(f"{self._path} was cut: it has {n_bytes} bytes, where its tensors need {needed}")

    def _end(self, index: int) -> int:
        """Returns where a tensor ends in its file, in bytes."""
        start = self._ggml.gguf_get_data_offset(self._head) + self._ggml.gguf_get_tensor_offset(self._head, index)
        return int(start + self._ggml.gguf_get_tensor_size(self._head, index))

    def __enter__(self) -> GgufHead:
        return self

    def __exit__(self, *error: object) -> None:
        self._ggml.gguf_free(self._head)


log = logging.getLogger("corosrv.encoder")

# Types of projectors that are made for models with M-RoPE alone. libmtmd asks the model, and not the projector.
MROPE_KINDS = frozenset({"qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "qwen2.5o", "paddleocr"})
_WORDS = {MROPE: "M-RoPE positions", NON_CAUSAL: "attention that is not causal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Holds what decides whether a projector and a model belong together."""

    mmproj: str
    model: str
    kind: str  # the projector's type, as its file has it
    is_mrope: bool  # of the model
    has_attention: bool  # the model has some
    is_non_causal: bool  # of the projector's rows


def check_pair(pair: Pair, supports: Collection[str]) -> None:
    """Raises LoadError for rows that the model cannot read, or the decode loop, which does what `supports` names."""
    if pair.kind in MROPE_KINDS and not pair.is_mrope:
        raise LoadError(
            f"the projector {pair.mmproj} ({pair.kind}) is for models with M-RoPE, and the model {pair.model} has "
            "none: use the projector that was made with the model"
        )
    if pair.is_non_causal and not pair.has_attention:
        raise LoadError(
            f"the projector {pair.mmproj} ({pair.kind}) needs attention that is not causal, "
            f"and the model {pair.model} is recurrent: use the projector that was made with the model"
        )
    needs = {MROPE: pair.is_mrope, NON_CAUSAL: pair.is_non_causal}
    missing = [_WORDS[need] for need, is_needed in needs.items() if is_needed and need not in supports]
    if missing:
        raise LoadError(
            f"the projector {pair.mmproj} needs {' and '.join(missing)}, which this version does not support"
        )


SIDE = 64  # pixels of the trial's image


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of encoding a small image."""

    n_rows: int
    seconds: float


def try_projector(projector: Projector, path: str) -> Trial:
    """Encodes a small image. Takes as long as that does; raises LoadError where no finite rows come out."""
    pixels = bytes(range(256)) * (3 * SIDE * SIDE // 256)
    began = time.monotonic()
    try:
        encoding = projector.encode(SIDE, SIDE, memoryview(pixels))
    except EncodingFailed as error:
        raise LoadError(f"the projector {path} does not encode an image of {SIDE} x {SIDE} pixels: {error}") from error
    if not math.isfinite(sum(encoding.rows.cast("f"))):  # in float64, where no sum of finite numbers overflows
        raise LoadError(f"the projector {path} makes numbers of an image that are not finite: the file is damaged")
    return Trial(encoding.total, time.monotonic() - began)


def open_projector(options: ProjectorOptions) -> tuple[Projector, Trial]:
    """Opens a projector, and tries it. Takes seconds.

    Raises LoadError, also for one whose rows the decode loop cannot read.
    """
    log.info("opening the projector %s", options.mmproj)
    tail = LogTail(lambda line: log.debug("%s", line))
    tail.attach()
    with GgufHead(options.mmproj) as head:
        head.check_length()
        kind = head.projector_kind
    projector = Projector(options, tail)
    pair = Pair(
        mmproj=options.mmproj,
        model=options.model,
        kind=kind,
        is_mrope=projector.is_mrope,
        has_attention=projector.has_attention,
        is_non_causal=projector.is_non_causal,
    )
    check_pair(pair, options.supports)
    trial = try_projector(projector, options.mmproj)
    log.info("a small image became %d rows in %.3g s", trial.n_rows, trial.seconds)
    return projector, trial
