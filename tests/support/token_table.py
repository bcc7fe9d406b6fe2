"""Rows of a model's token table, read from its file: what the model itself would look up for these tokens.

Some models scale what they look up for tokens, and not what comes as rows; there the rows stand for other tokens.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corosrv.images.encoder.opening import GgufHead, open_ggml
from corosrv.images.transfer.pool import FLOAT_BYTES

_TENSOR = b"token_embd.weight"
_F32 = 0  # ggml's type of a tensor's numbers

_ToFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class _TableHead(GgufHead):
    """Finds the table in a model file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._ggml.gguf_find_tensor.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        self._ggml.gguf_find_tensor.restype = ctypes.c_int64
        self._ggml.gguf_get_tensor_ne.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._ggml.gguf_get_tensor_ne.restype = ctypes.POINTER(ctypes.c_int64)
        self._ggml.gguf_get_tensor_type.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._index = self._ggml.gguf_find_tensor(self._head, _TENSOR)
        assert self._index >= 0, f"the model {path} has no token table in its first file"

    @property
    def shape(self) -> tuple[int, int]:
        """How many numbers a row has, and how many rows there are."""
        extents = self._ggml.gguf_get_tensor_ne(self._head, self._index)
        return extents[0], extents[1]

    @property
    def place(self) -> tuple[int, int]:
        """Where the table begins and ends, in bytes."""
        end = self._end(self._index)
        return end - self._ggml.gguf_get_tensor_size(self._head, self._index), end

    @property
    def converter(self) -> Any:
        """What turns the table's numbers into floats; None for floats."""
        ggml_type = self._ggml.gguf_get_tensor_type(self._head, self._index)
        if ggml_type == _F32:
            return None
        traits = open_ggml().ggml_get_type_traits
        traits.argtypes, traits.restype = [ctypes.c_int], ctypes.POINTER(_TypeTraits)
        return _ToFloat(traits(ggml_type).contents.to_float)


class TokenTable:
    """Owns the mapping of a model file. One thread at a time reads it."""

    def __init__(self, model: str) -> None:
        with _TableHead(model) as head:
            head.check_length()
            self.n_embd, self.n_tokens = head.shape
            self._start, end = head.place
            self._to_float = head.converter
        self._stored_bytes = (end - self._start) // self.n_tokens  # of a row
        with Path(model).open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)

    def rows(self, ids: Sequence[int]) -> bytes:
        """A row for each token. Raises IndexError where there is none."""
        return b"".join(map(self._row, ids))

    def _row(self, token: int) -> bytes:
        if not 0 <= token < self.n_tokens:
            raise IndexError(f"there is no token {token}; the model has {self.n_tokens}")
        start = self._start + token * self._stored_bytes
        stored = self._map[start : start + self._stored_bytes]
        if self._to_float is None:
            return stored
        row = ctypes.create_string_buffer(FLOAT_BYTES * self.n_embd)
        self._to_float(stored, ctypes.addressof(row), self.n_embd)
        return row.raw

    def close(self) -> None:
        """Unmaps the file. Later calls do nothing."""
        self._map.close()
