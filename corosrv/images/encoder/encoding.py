"""Defines what an encoder makes of an item: segments, and the rows of all of them."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.images.transfer.layout import FLOAT_BYTES
from corosrv.images.transfer.messages import RowSegment, Segment


@dataclass(frozen=True, slots=True)
class Encoding:
    """Holds the rows of all row segments one after another, as little-endian float32 of `n_embd` numbers."""

    segments: tuple[Segment, ...]
    rows: memoryview  # bytes, read only
    n_embd: int

    def __post_init__(self) -> None:
        """Raises ValueError unless there are as many bytes as the segments say."""
        if self.rows.nbytes != self.total * self.row_bytes:
            raise ValueError(f"{self.rows.nbytes} bytes are not {self.total} rows of {self.n_embd} numbers")

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(segment.n for segment in self.segments if isinstance(segment, RowSegment))

    @property
    def row_bytes(self) -> int:
        return FLOAT_BYTES * self.n_embd

    def slice(self, offset: int, n: int) -> memoryview:
        """Returns the bytes of `n` rows from row `offset` on."""
        return self.rows[offset * self.row_bytes : (offset + n) * self.row_bytes]


class EncodingFailed(Exception):
    """Says why an item has no rows. Caught within this package; `code` is for programs."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
