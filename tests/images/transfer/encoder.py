"""A pool in plain memory and an encoder that obeys the protocol, driven step by step beside a core."""

from __future__ import annotations

from collections.abc import Callable

from corosrv.base.errors import ProtocolError, RowsNotFinite
from corosrv.images.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    Geometry,
    GrantBlocks,
    OpenTransfer,
    RowSegment,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.images.transfer.session import Allocation

NAN = b"\x00\x00\xc0\x7f"


def row(tid: int, index: int) -> bytes:
    """Returns the one number that is row `index` of the item of a transfer, in four bytes that are no NaN."""
    return bytes((tid % 251, index % 256, index // 256, 7))


def meta(epoch: int, tid: int, total: int) -> TransferMeta:
    return TransferMeta(epoch, tid, total, 1, (RowSegment(total),))


class PlainPool:
    """Holds blocks and headers as the shared pool does; what is read must be what was written for this grant."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.rows: dict[tuple[int, int], bytes] = {}
        self.headers: dict[int, tuple[int, ...]] = {}

    def write(self, epoch: int, grant: GrantBlocks, n: int, make_row: Callable[[int, int], bytes] = row) -> None:
        for start in range(0, n, self.geometry.block_rows):
            block = grant.blocks[start // self.geometry.block_rows]
            n_here = min(self.geometry.block_rows, n - start)
            for index in range(n_here):
                self.rows[block, index] = make_row(grant.tid, grant.offset + start + index)
            self.headers[block] = (epoch, grant.tid, grant.gen, grant.offset + start, n_here)

    def copy_rows(self, epoch: int, allocation: Allocation, offset: int, n: int, into: memoryview) -> None:
        for start in range(0, n, self.geometry.block_rows):
            block = allocation.blocks[start // self.geometry.block_rows]
            n_here = min(self.geometry.block_rows, n - start)
            if self.headers.get(block) != (epoch, allocation.tid, allocation.gen, offset + start, n_here):
                raise ProtocolError(f"block {block} is headed {self.headers.get(block)}")
            for index in range(n_here):
                if self.rows[block, index] == NAN:
                    raise RowsNotFinite("a row is not finite")
                into[4 * (start + index) : 4 * (start + index) + 4] = self.rows[block, index]


class HonestEncoder:
    """Answers as the encoder process does. `n_rows` says how long the item of a tid is."""

    def __init__(self, pool: PlainPool, epoch: int, n_rows: Callable[[int], int]) -> None:
        self.pool = pool
        self.epoch = epoch
        self.n_rows = n_rows
        self.encoding: list[int] = []  # tids
        self.grants: list[GrantBlocks] = []  # that are not written yet
        self.holding: dict[int, int] = {}  # the last generation, by tid
        self.floor = 0

    def receive(self, message: object) -> list[ToLanguage]:
        """Takes one message, and returns what is answered at once."""
        match message:
            case OpenTransfer(tid=tid) if tid > self.floor:
                self.floor = tid
                self.encoding.append(tid)
            case GrantBlocks(tid=tid) if self.holding.get(tid) == message.gen - 1:
                self.holding[tid] = message.gen
                self.grants.append(message)
            case CancelTransfer(tid=tid):
                is_live = tid in self.encoding or tid in self.holding
                self.encoding = [other for other in self.encoding if other != tid]
                self.holding.pop(tid, None)
                self.grants = [grant for grant in self.grants if grant.tid != tid]
                return [TransferAborted(self.epoch, tid)] if is_live else []
            case CloseTransfer(tid=tid):
                self.holding.pop(tid, None)
        return []

    def encode(self, tid: int) -> list[ToLanguage]:
        """Ends the encode of an item."""
        self.encoding.remove(tid)
        self.holding[tid] = 0
        return [meta(self.epoch, tid, self.n_rows(tid))]

    def fail(self, tid: int) -> list[ToLanguage]:
        """Gives up the encode of an item."""
        self.encoding.remove(tid)
        return [EncodeFailed(self.epoch, tid, "bad", "no image")]

    def write(self) -> list[ToLanguage]:
        """Writes the rows of the oldest grant."""
        grant = self.grants.pop(0)
        total = self.n_rows(grant.tid)
        n = min(total - grant.offset, grant.capacity)
        self.pool.write(self.epoch, grant, n)
        return [BlocksFilled(self.epoch, grant.tid, grant.gen, grant.offset, n, total)]
