"""Says where things stand in a pool's memory: a superblock, the headers of all blocks, and the blocks.

All numbers are little-endian. The superblock fills a page; a header follows another every 64 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from corosrv.base.errors import ProtocolError
from corosrv.images.transfer.messages import Geometry

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
    """Returns the size of a pool."""
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
