"""The shared pool: what is read is what was written for this grant, or nothing."""

from __future__ import annotations

import mmap
import os
import struct

import pytest

from corosrv.base.errors import ProtocolError, RowsNotFinite
from corosrv.images.transfer.pool import (
    BlockHeader,
    SharedPool,
    block_at,
    header_at,
    pack_superblock,
    pool_bytes,
    pool_geometry,
    unpack_superblock,
)
from corosrv.images.transfer.session import Allocation

GEOMETRY = pool_geometry(n_blocks=4, block_rows=2, n_embd=3)
ALLOCATION = Allocation(tid=7, gen=2, blocks=(3, 1))
ROWS = struct.pack("<9f", *range(9))  # three rows


@pytest.fixture
def pool():
    pool = SharedPool(GEOMETRY)
    pool.begin_epoch(5)
    yield pool
    pool.close()


def write(pool: SharedPool, rows: bytes = ROWS, **changes: int) -> None:
    """Writes rows 10 to 12 into blocks 3 and 1 through another mapping, as the encoder process does."""
    with mmap.mmap(pool.fd, pool_bytes(GEOMETRY)) as view:
        for block, offset, n, part in ((3, 10, 2, rows[:24]), (1, 12, 1, rows[24:])):
            start = block_at(GEOMETRY, block)
            view[start : start + len(part)] = part
            fields = {"epoch": 5, "tid": 7, "gen": 2, "offset": offset, "n": n}
            header = BlockHeader(**{**fields, **(changes if block == 1 else {})}).pack()
            view[header_at(block) : header_at(block) + len(header)] = header


def read(pool: SharedPool) -> bytes:
    rows = bytearray(36)
    pool.copy_rows(5, ALLOCATION, 10, 3, memoryview(rows))
    return bytes(rows)


def test_rows_arrive_in_order_of_the_grant(pool):
    write(pool)

    assert read(pool) == ROWS


@pytest.mark.parametrize("field", ["epoch", "tid", "gen", "offset", "n"])
def test_a_block_headed_for_other_rows_is_no_data(pool, field: str):
    write(pool, **{field: 99})

    with pytest.raises(ProtocolError, match="block 1 is headed"):
        read(pool)


def test_headers_are_looked_at_again_after_copying(pool):
    write(pool)

    rows = bytearray(36)
    checks = []
    check = pool._check
    pool._check = lambda headers: (checks.append(bytes(rows)), check(headers))

    pool.copy_rows(5, ALLOCATION, 10, 3, memoryview(rows))

    assert checks == [bytes(36), ROWS]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_number_that_is_not_finite_is_refused(pool, number: float, place: int):
    numbers = [3e38] * 9
    numbers[place] = number
    write(pool, struct.pack("<9f", *numbers))

    with pytest.raises(RowsNotFinite):
        read(pool)


def test_large_finite_numbers_pass(pool):
    rows = struct.pack("<9f", *[3.4e38] * 9)
    write(pool, rows)

    assert read(pool) == rows


def test_rows_of_the_encoder_before_are_not_read(pool):
    write(pool)
    pool.begin_epoch(6)

    with pytest.raises(ProtocolError):
        pool.copy_rows(6, ALLOCATION, 10, 3, memoryview(bytearray(36)))


def test_more_rows_than_the_blocks_hold_are_refused(pool):
    with pytest.raises(ProtocolError, match="5 rows cannot be in 2 blocks"):
        pool.copy_rows(5, ALLOCATION, 10, 5, memoryview(bytearray(60)))


@pytest.mark.parametrize("size", [0, 1 << 20])
def test_nobody_can_resize_a_pool(pool, size: int):
    with pytest.raises(PermissionError):
        os.ftruncate(pool.fd, size)


def test_a_pool_describes_itself(pool):
    with mmap.mmap(pool.fd, pool_bytes(GEOMETRY)) as view:
        assert unpack_superblock(view[:4096]) == (GEOMETRY, 5)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 4096, b"x" + pack_superblock(GEOMETRY, 1)[1:], b"corosrv\0\2" + pack_superblock(GEOMETRY, 1)[9:]],
)
def test_what_is_no_pool_of_this_version_is_refused(data: bytes):
    with pytest.raises(ProtocolError):
        unpack_superblock(data)


def test_blocks_of_smollm2_fill_nine_pages():
    geometry = pool_geometry(n_blocks=64, block_rows=16, n_embd=576)

    assert (geometry.row_bytes, geometry.stride) == (2304, 36864)
    assert [block_at(geometry, block) % 4096 for block in range(64)] == [0] * 64


def test_a_closed_pool_leaves_no_descriptor_and_may_be_closed_again():
    pool = SharedPool(GEOMETRY)

    pool.close()
    pool.close()

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pool.fd)
