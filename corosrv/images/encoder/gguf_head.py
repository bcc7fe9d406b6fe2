"""Reads what stands before the tensors of a GGUF file, with ggml's own reader."""

from __future__ import annotations

import ctypes
import functools
import os
from types import TracebackType
from typing import Any

from corosrv.base.errors import LoadError
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ggml.gguf_free(self._head)
