"""Writes rows into the blocks of the pool, as the language side lends them.

The pool is a memory file: a page that describes it, the headers of all blocks, and the blocks, each `stride` bytes
from the one before it. A header is written after the rows of its block, and says whose they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct

from corosrv.encoder.encoding import FLOAT_BYTES, Encoding
from corosrv.errors import ProtocolError
from corosrv.transfer.messages import Geometry, GrantBlocks

PAGE = 4096  # bytes
HEADER_BYTES = 64
HEADER = struct.Struct("<QQQQQ")  # epoch, tid, gen, the first row, how many rows
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def first_block(geometry: Geometry) -> int:
    """Returns where the blocks begin, in bytes."""
    return PAGE + -(-HEADER_BYTES * geometry.n_blocks // PAGE) * PAGE


def pool_bytes(geometry: Geometry) -> int:
    """Returns the size of a pool."""
    return first_block(geometry) + geometry.n_blocks * geometry.stride


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

    def __init__(self, fd: int, geometry: Geometry, n_embd: int) -> None:
        """Maps the pool; the descriptor can be closed then.

        Raises ProtocolError unless it is a memory file of this geometry that nobody can resize: one that was cut
        would end this process at its next write.
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
        self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def write(self, grant: GrantBlocks, encoding: Encoding, n: int) -> None:
        """Copies `n` rows from the grant's offset on into its blocks, then writes the headers of those blocks."""
        geometry = self._geometry
        headers = []
        for place, block in enumerate(grant.blocks):
            n_before = place * geometry.block_rows
            n_rows = max(0, min(geometry.block_rows, n - n_before))
            rows = encoding.slice(grant.offset + n_before, n_rows)
            start = first_block(geometry) + block * geometry.stride
            self._map[start : start + rows.nbytes] = rows
            headers.append((block, HEADER.pack(grant.epoch, grant.tid, grant.gen, grant.offset + n_before, n_rows)))
        for block, header in headers:
            start = PAGE + HEADER_BYTES * block
            self._map[start : start + HEADER.size] = header

    def close(self) -> None:
        """Unmaps the pool. Later calls do nothing."""
        with contextlib.suppress(BufferError):
            self._map.close()
