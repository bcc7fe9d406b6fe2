"""The shared memory that rows arrive in: a superblock, the headers of all blocks, and the blocks.

All numbers are little-endian. The superblock fills a page; a header follows another every 64 bytes.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
from dataclasses import dataclass

from corosrv.base.errors import ProtocolError, RowsNotFinite
from corosrv.images.transfer.messages import Geometry
from corosrv.images.transfer.session import Allocation

PAGE = 4096  # bytes
MAGIC = b"corosrv\0"
LAYOUT_VERSION = 1
FLOAT_BYTES = 4
HEADER_BYTES = 64
_SUPERBLOCK = struct.Struct("<8sIIIIQQ")  # magic, version, n_blocks, block_rows, row_bytes, stride, epoch
_HEADER = struct.Struct("<QQQQQ")


def whole_pages(n_bytes: int) -> int:
    """Rounds a size up to whole pages."""
    return -(-n_bytes // PAGE) * PAGE


def pool_geometry(n_blocks: int, block_rows: int, n_embd: int) -> Geometry:
    """Returns the geometry of a pool whose blocks begin at pages, with rows of `n_embd` numbers."""
    if min(n_blocks, block_rows, n_embd) < 1:
        raise ValueError(f"a pool of {n_blocks} blocks of {block_rows} rows of {n_embd} numbers holds nothing")
    row_bytes = FLOAT_BYTES * n_embd
    return Geometry(n_blocks, block_rows, row_bytes, whole_pages(block_rows * row_bytes))


def header_at(block: int) -> int:
    """Returns where the header of a block begins, in bytes."""
    return PAGE + HEADER_BYTES * block


def block_at(geometry: Geometry, block: int) -> int:
    """Returns where a block begins, in bytes."""
    return PAGE + whole_pages(HEADER_BYTES * geometry.n_blocks) + geometry.stride * block


def pool_bytes(geometry: Geometry) -> int:
    return block_at(geometry, geometry.n_blocks)


def pack_superblock(geometry: Geometry, epoch: int) -> bytes:
    """Returns the bytes that describe a pool."""
    sizes = (geometry.n_blocks, geometry.block_rows, geometry.row_bytes, geometry.stride)
    return _SUPERBLOCK.pack(MAGIC, LAYOUT_VERSION, *sizes, epoch)


def unpack_superblock(data: bytes | memoryview) -> tuple[Geometry, int]:
    """Returns a pool's geometry and epoch. Raises ProtocolError for what is no pool, or one of another version."""
    try:
        magic, version, *sizes, epoch = _SUPERBLOCK.unpack_from(data)
    except struct.error as error:
        raise ProtocolError(f"a pool without a superblock: {error}") from None
    if magic != MAGIC or version != LAYOUT_VERSION:
        raise ProtocolError(f"a pool that begins with {magic!r}, version {version}, is of another program")
    return Geometry(*sizes), epoch


@dataclass(frozen=True, slots=True)
class BlockHeader:
    """Says whose rows a block holds: written after them, and compared before and after they are read."""

    epoch: int
    tid: int
    gen: int
    offset: int  # of the block's first row in its item
    n: int

    def pack(self) -> bytes:
        return _HEADER.pack(self.epoch, self.tid, self.gen, self.offset, self.n)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> BlockHeader:
        return cls(*_HEADER.unpack_from(data))


# Whoever has the descriptor may write, but not resize: a process that reads beyond a cut would be killed by SIGBUS.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def is_all_finite(rows: bytes) -> bool:
    """Returns whether little-endian float32 numbers are all finite. Takes about 2 ns for each."""
    # The last byte of a number holds its sign and all bits of its exponent but the lowest: only numbers from 1.7e38 on,
    # infinities and NaNs have all of these bits set. Looking for such bytes is 10 times as fast as adding up.
    high = rows[3::4]
    if b"\x7f" not in high and b"\xff" not in high:
        return True
    # A sum of float32 numbers in float64 cannot overflow: it is finite if all of them are.
    return math.isfinite(sum(memoryview(rows).cast("f")))


class SharedPool:
    """Owns the memory file of a pool and its mapping. `fd` is handed to encoder processes."""

    def __init__(self, geometry: Geometry) -> None:
        """Makes a pool of empty blocks. Raises OSError if there is no memory or descriptor for it."""
        self.geometry = geometry
        size = pool_bytes(geometry)
        self.fd = os.memfd_create("corosrv-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:  # nobody else knows the descriptor
            os.close(self.fd)
            raise
        self._view = memoryview(self._map)
        self._is_closed = False

    def begin_epoch(self, epoch: int) -> None:
        """Writes the superblock for the next encoder process, and clears all headers. No encoder may run."""
        superblock = pack_superblock(self.geometry, epoch)
        self._view[: len(superblock)] = superblock
        first, last = header_at(0), header_at(self.geometry.n_blocks)
        self._view[first:last] = bytes(last - first)

    def copy_rows(self, epoch: int, allocation: Allocation, offset: int, n: int, into: memoryview) -> None:
        """Copies `n` rows out of an allocation, of which the first is row `offset` of its item.

        Raises ProtocolError for a block whose header is another than that of these rows, before or after copying, and
        RowsNotFinite for numbers that are not finite.
        """
        headers = self._headers(epoch, allocation, offset, n)
        self._check(headers)
        start, is_finite = 0, True
        for block, header in headers:
            n_bytes = header.n * self.geometry.row_bytes
            first = block_at(self.geometry, block)
            rows = bytes(self._view[first : first + n_bytes])
            is_finite = is_finite and is_all_finite(rows)
            into[start : start + n_bytes] = rows
            start += n_bytes
        self._check(headers)
        if not is_finite:
            raise RowsNotFinite(f"rows {offset} to {offset + n} have a number that is not finite")

    def _headers(self, epoch: int, allocation: Allocation, offset: int, n: int) -> list[tuple[int, BlockHeader]]:
        """Returns the blocks that hold these rows, and how each of them must be headed."""
        block_rows = self.geometry.block_rows
        if not 0 < n <= len(allocation.blocks) * block_rows:
            raise ProtocolError(f"{n} rows cannot be in {len(allocation.blocks)} blocks of {block_rows}")
        return [
            (block, BlockHeader(epoch, allocation.tid, allocation.gen, offset + start, min(block_rows, n - start)))
            for block, start in zip(allocation.blocks, range(0, n, block_rows), strict=False)
        ]

    def _check(self, headers: list[tuple[int, BlockHeader]]) -> None:
        for block, expected in headers:
            header = BlockHeader.unpack(self._view[header_at(block) : header_at(block + 1)])
            if header != expected:
                raise ProtocolError(f"block {block} is headed {header}, where {expected} was due")

    def close(self) -> None:
        """Unmaps the pool and closes its descriptor. Later calls do nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._view.release()
            self._map.close()
            os.close(self.fd)
