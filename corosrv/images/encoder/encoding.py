"""The encoding of an item: segments, and the rows of all of them, written into the blocks of the pool.

The language side lends the blocks; corosrv.images.transfer.pool says where they are.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

from corosrv.base.errors import ProtocolError
from corosrv.images.transfer.messages import Geometry, GrantBlocks, RowSegment, Segment
from corosrv.images.transfer.pool import (
    FLOAT_BYTES,
    PAGE,
    BlockHeader,
    block_at,
    header_at,
    pool_bytes,
    unpack_superblock,
)


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


_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def check_geometry(geometry: Geometry, n_embd: int) -> None:
    """Raises ProtocolError where blocks overlap, or a row is not `n_embd` numbers wide."""
    if geometry.n_blocks < 1 or geometry.block_rows < 1:
        raise ProtocolError(f"a pool of {geometry.n_blocks} blocks of {geometry.block_rows} rows holds nothing")
    if geometry.row_bytes != FLOAT_BYTES * n_embd:
        raise ProtocolError(f"the pool's rows have {geometry.row_bytes} bytes, where the model has {n_embd} numbers")
    if geometry.stride < geometry.block_rows * geometry.row_bytes:
        raise ProtocolError(f"{geometry.stride} bytes are too few for a block of {geometry.block_rows} rows")


class PoolWriter:
    """Owns the mapping of a pool. One thread at a time writes."""

    def __init__(self, fd: int, geometry: Geometry, epoch: int, n_embd: int) -> None:
        """Maps the pool; the descriptor can be closed then.

        Raises ProtocolError unless it is a memory file of this geometry and epoch that nobody can resize: one that was
        cut would end this process at its next write.
        """
        check_geometry(geometry, n_embd)
        size = pool_bytes(geometry)
        try:
            seals, n_bytes = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd).st_size
        except OSError as error:
            raise ProtocolError(f"the pool is no memory file: {error.strerror}") from error
        if seals & _SEALS != _SEALS or n_bytes != size:
            raise ProtocolError(f"a pool of {n_bytes} bytes, where {size} were announced, or one that can be resized")
        self._geometry = geometry
        if unpack_superblock(os.pread(fd, PAGE, 0)) != (geometry, epoch):
            raise ProtocolError("the pool's first page describes another pool, or one of another process's time")
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def write(self, grant: GrantBlocks, encoding: Encoding, n: int) -> None:
        """Copies `n` rows from the grant's offset on into its blocks, then writes the headers of those blocks."""
        headers = []
        for place, block in enumerate(grant.blocks):
            n_before = place * self._geometry.block_rows
            n_rows = max(0, min(self._geometry.block_rows, n - n_before))
            rows = encoding.slice(grant.offset + n_before, n_rows)
            start = block_at(self._geometry, block)
            self._map[start : start + rows.nbytes] = rows
            headers.append((block, BlockHeader(grant.epoch, grant.tid, grant.gen, grant.offset + n_before, n_rows)))
        for block, header in headers:
            packed = header.pack()
            self._map[header_at(block) : header_at(block) + len(packed)] = packed

    def close(self) -> None:
        """Unmaps the pool. Later calls do nothing."""
        self._map.close()
