"""Reads rows of a model's token table from its file: what the model itself would look up for these tokens.

Some models scale what they look up for tokens, and not what comes as rows; there the rows stand for other tokens.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

from corosrv.encoder.encoding import Encoding, EncodingFailed
from corosrv.encoder.gguf_head import GgufHead, open_ggml
from corosrv.errors import LoadError
from corosrv.transfer.layout import FLOAT_BYTES
from corosrv.transfer.messages import RowSegment

_TENSOR = "token_embd.weight"
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


def _converter(ggml_type: int) -> Any:
    """Returns what turns numbers of a type into floats; None for floats."""
    if ggml_type == _F32:
        return None
    traits = open_ggml().ggml_get_type_traits
    traits.argtypes, traits.restype = [ctypes.c_int], ctypes.POINTER(_TypeTraits)
    return _ToFloat(traits(ggml_type).contents.to_float)


class TokenTable:
    """Owns the mapping of a model file. One thread at a time reads it."""

    def __init__(self, model: str) -> None:
        """Finds the table in the file and maps it; rows are converted as they are asked for. Raises LoadError."""
        with GgufHead(model) as head:
            head.check_length()
            table = head.tensor(_TENSOR)
        if table is None:
            raise LoadError(f"the model {model} has no token table in its first file")
        self.n_embd, self.n_tokens = table.n_columns, table.n_rows
        self._start = table.start
        self._stored_bytes = table.n_bytes // table.n_rows  # of a row
        self._to_float = _converter(table.ggml_type)
        with open(model, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)

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
