"""Reads rows of a model's token table from its file: what the model itself would look up for these tokens.

Some models scale what they look up for tokens, and not what comes as rows; there the rows stand for other tokens.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp

from corosrv.encoder.encoding import Encoding, EncodingFailed
from corosrv.errors import LoadError
from corosrv.transfer.layout import FLOAT_BYTES
from corosrv.transfer.messages import RowSegment

_TENSOR = b"token_embd.weight"
_F32 = 0  # ggml's type of a tensor's numbers

_ToFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _InitParameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


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


def _open_ggml() -> Any:
    ggml = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    for name, takes, gives in (
        ("gguf_init_from_file", [ctypes.c_char_p, _InitParameters], ctypes.c_void_p),
        ("gguf_free", [ctypes.c_void_p], None),
        ("gguf_get_data_offset", [ctypes.c_void_p], ctypes.c_size_t),
        ("gguf_find_tensor", [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_int64),
        ("gguf_get_tensor_offset", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_size_t),
        ("gguf_get_tensor_size", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_size_t),
        ("gguf_get_tensor_type", [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int),
        ("gguf_get_tensor_ne", [ctypes.c_void_p, ctypes.c_int64], ctypes.POINTER(ctypes.c_int64)),
        ("ggml_get_type_traits", [ctypes.c_int], ctypes.POINTER(_TypeTraits)),
    ):
        function = getattr(ggml, name)
        function.argtypes, function.restype = takes, gives
    return ggml


class TokenTable:
    """Owns the mapping of a model file. One thread at a time reads it."""

    def __init__(self, model: str) -> None:
        """Finds the table in the file and maps it; rows are converted as they are asked for. Raises LoadError."""
        ggml = _open_ggml()
        head = ggml.gguf_init_from_file(model.encode(), _InitParameters(True, None))
        if not head:
            raise LoadError(f"the model {model} cannot be opened")
        try:
            tensor = ggml.gguf_find_tensor(head, _TENSOR)
            if tensor < 0:
                raise LoadError(f"the model {model} has no token table in its first file")
            extents = ggml.gguf_get_tensor_ne(head, tensor)
            self.n_embd, self.n_tokens = int(extents[0]), int(extents[1])
            self._start = ggml.gguf_get_data_offset(head) + ggml.gguf_get_tensor_offset(head, tensor)
            n_bytes = ggml.gguf_get_tensor_size(head, tensor)
            self._type = ggml.gguf_get_tensor_type(head, tensor)
            traits = ggml.ggml_get_type_traits(self._type).contents
        finally:
            ggml.gguf_free(head)
        self._stored_bytes = n_bytes // self.n_tokens  # of a row
        self._to_float = _ToFloat(traits.to_float) if self._type != _F32 else None
        with open(model, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
        if self._start + n_bytes > len(self._map):
            self.close()
            raise LoadError(f"the model {model} ends within its token table")

    def encode(self, ids: Sequence[int]) -> Encoding:
        """Returns a row for each token. Raises EncodingFailed where there is none."""
        if not ids:
            raise EncodingFailed("no_rows", "no tokens were named")
        for token in ids:
            if not 0 <= token < self.n_tokens:
                raise EncodingFailed("bad_token", f"there is no token {token}; the model has {self.n_tokens}")
        rows = b"".join(map(self._row, ids))
        return Encoding((RowSegment(len(ids)),), memoryview(rows), self.n_embd)

    def _row(self, token: int) -> bytes:
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
