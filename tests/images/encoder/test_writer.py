"""Rows written into lent blocks, and pools that nothing is written into."""

import os
import struct

import msgspec
import pytest

from corosrv.base.errors import ProtocolError
from corosrv.images.encoder.encoding import Encoding, PoolWriter, check_geometry
from corosrv.images.transfer.messages import GrantBlocks, RowSegment
from corosrv.images.transfer.pool import BlockHeader
from tests.images.encoder.pool import EPOCH, HandPool, geometry, unsealed_copy

N_EMBD, BLOCK_ROWS = 3, 2


@pytest.fixture
def pool():
    pool = HandPool(geometry(4, BLOCK_ROWS, N_EMBD))
    yield pool
    pool.close()


@pytest.fixture
def writer(pool):
    writer = PoolWriter(pool.fd, pool.geometry, EPOCH, N_EMBD)
    yield writer
    writer.close()


def row(number: int) -> tuple[float, ...]:
    return number, number + 0.25, number + 0.5


def encoding(n_rows: int) -> Encoding:
    numbers = [value for number in range(n_rows) for value in row(number)]
    return Encoding((RowSegment(n_rows),), memoryview(struct.pack(f"<{len(numbers)}f", *numbers)), N_EMBD)


def test_rows_stand_in_the_blocks_of_their_grant_in_its_order_and_each_block_says_which(pool, writer):
    writer.write(GrantBlocks(EPOCH, 7, 2, 1, (3, 0, 2), 3 * BLOCK_ROWS), encoding(10), 5)

    assert [pool.header(block) for block in (3, 0, 2)] == [
        BlockHeader(EPOCH, 7, 2, 1, 2),
        BlockHeader(EPOCH, 7, 2, 3, 2),
        BlockHeader(EPOCH, 7, 2, 5, 1),
    ]
    assert pool.rows(3) + pool.rows(0) + pool.rows(2) == [row(number) for number in range(1, 6)]
    assert pool.header(1) == BlockHeader(0, 0, 0, 0, 0)


def test_a_block_that_no_row_is_left_for_says_so(pool, writer):
    writer.write(GrantBlocks(EPOCH, 7, 1, 0, (0, 1), 2 * BLOCK_ROWS), encoding(1), 1)

    assert pool.header(1) == BlockHeader(EPOCH, 7, 1, 2, 0)
    assert pool.rows(0) == [row(0)]


def test_all_rows_are_written_before_the_first_header_says_so(pool, writer):
    writer._map = Watched(writer._map)

    writer.write(GrantBlocks(EPOCH, 7, 1, 0, (3, 0), 2 * BLOCK_ROWS), encoding(4), 4)

    first_block = 2 * 4096
    assert [at >= first_block for at in writer._map.written] == [True, True, False, False]


class Watched:
    """The memory of a pool, which notes where it is written to, in order."""

    def __init__(self, memory) -> None:
        self._memory = memory
        self.written: list[int] = []

    def __setitem__(self, place: slice, content) -> None:
        self.written.append(place.start)
        self._memory[place] = content

    def close(self) -> None:
        self._memory.close()


def test_nothing_of_the_pool_changes_beside_the_rows_and_their_headers(pool, writer):
    before = pool.content()

    writer.write(GrantBlocks(EPOCH, 7, 1, 0, (1,), BLOCK_ROWS), encoding(9), 2)

    changed = {at for at, (a, b) in enumerate(zip(before, pool.content(), strict=True)) if a != b}
    header = range(4096 + 64, 4096 + 64 + 40)
    block = range(2 * 4096 + 4096, 2 * 4096 + 4096 + 2 * 4 * N_EMBD)
    assert changed <= {*header, *block}
    assert changed & {*header}
    assert changed & {*block}


def test_a_writer_that_is_closed_writes_nothing(writer):
    writer.close()
    writer.close()

    with pytest.raises(ValueError, match="closed"):
        writer.write(GrantBlocks(EPOCH, 7, 1, 0, (1,), BLOCK_ROWS), encoding(2), 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_blocks": 0}, "0 blocks of 2 rows holds nothing"),
        ({"block_rows": 0}, "4 blocks of 0 rows holds nothing"),
        ({"row_bytes": 4 * N_EMBD + 4}, "rows have 16 bytes, where the model has 3 numbers"),
        ({"stride": 8 * N_EMBD - 1}, "23 bytes are too few for a block of 2 rows"),
    ],
)
def test_a_pool_whose_blocks_hold_no_such_rows_is_refused(changes, words):
    with pytest.raises(ProtocolError, match=words):
        check_geometry(msgspec.structs.replace(geometry(4, BLOCK_ROWS, N_EMBD), **changes), N_EMBD)


def test_one_block_of_one_row_without_a_gap_is_a_pool():
    check_geometry(msgspec.structs.replace(geometry(1, 1, N_EMBD), stride=4 * N_EMBD), N_EMBD)


def test_a_pool_is_refused_before_it_is_mapped_where_the_width_is_another(pool):
    with pytest.raises(ProtocolError, match="where the model has 4 numbers"):
        PoolWriter(pool.fd, pool.geometry, EPOCH, 4)


def test_a_pool_of_another_size_is_refused(pool):
    larger = msgspec.structs.replace(pool.geometry, n_blocks=5)

    with pytest.raises(ProtocolError, match=r"where .* were announced"):
        PoolWriter(pool.fd, larger, EPOCH, N_EMBD)


def test_a_pool_that_describes_itself_otherwise_is_refused(pool):
    other = msgspec.structs.replace(pool.geometry, block_rows=1)

    for shape, epoch in ((other, EPOCH), (pool.geometry, EPOCH + 1)):
        with pytest.raises(ProtocolError, match="describes another pool"):
            PoolWriter(pool.fd, shape, epoch, N_EMBD)


def test_a_pool_that_can_be_resized_is_refused(pool):
    with unsealed_copy(pool) as fd, pytest.raises(ProtocolError, match="can be resized"):
        PoolWriter(fd, pool.geometry, EPOCH, N_EMBD)


def test_what_is_no_memory_file_is_refused(pool):
    reading, writing = os.pipe()
    try:
        with pytest.raises(ProtocolError, match="the pool is no memory file: Invalid argument"):
            PoolWriter(reading, pool.geometry, EPOCH, N_EMBD)
    finally:
        os.close(reading)
        os.close(writing)
