"""Follows one transfer through its states, and lends it the blocks of the pool.

A session remembers the allocation that it was lent, and not block numbers alone: those may be lent again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, IntEnum

from corosrv.base.errors import IllegalTransition, Misuse
from corosrv.images.transfer.messages import BlocksFilled, ImagePixels, RowSegment, TransferMeta


class TransferState(Enum):
    """States of a transfer on the language side."""

    QUEUED = "queued"  # the encoder does not know it
    OPENING = "opening"  # it is being encoded: its description is awaited
    NEED = "need"  # it waits for room for rows, in the pool or in memory
    FILLING = "filling"  # the encoder writes into lent blocks
    READY = "ready"  # lent blocks are written, and not copied yet
    DRAINING = "draining"  # it has failed, and the encoder may still write into lent blocks
    DONE = "done"
    FAILED = "failed"


MOVES: dict[TransferState, frozenset[TransferState]] = {
    TransferState.QUEUED: frozenset({TransferState.OPENING, TransferState.FAILED}),
    TransferState.OPENING: frozenset({TransferState.NEED, TransferState.FAILED}),
    TransferState.NEED: frozenset({TransferState.FILLING, TransferState.FAILED}),
    TransferState.FILLING: frozenset({TransferState.READY, TransferState.DRAINING, TransferState.FAILED}),
    TransferState.READY: frozenset({TransferState.DONE, TransferState.NEED, TransferState.FAILED}),
    TransferState.DRAINING: frozenset({TransferState.FAILED}),
    TransferState.DONE: frozenset(),
    TransferState.FAILED: frozenset(),
}

ACTIVE = frozenset({TransferState.OPENING, TransferState.NEED, TransferState.FILLING, TransferState.READY})
ENDED_FOR_CLIENT = frozenset({TransferState.DRAINING, TransferState.DONE, TransferState.FAILED})


class Poll(IntEnum):
    """Says how far a transfer is; it moves forward only, and to FAILED from anywhere but SUCCESS."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING = 2
    TRANSFERRING = 3
    SUCCESS = 4


class TransferResult(Enum):
    """Says why a transfer ended."""

    SUCCESS = "success"
    CANCELLED = "cancelled"
    ENCODER = "encoder"  # the encoder gave up
    LOST = "lost"  # the encoder process ended
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"  # the encoder said or wrote what it must not
    TOO_LARGE = "too_large"  # the item is larger than all rows together may be


@dataclass(frozen=True, slots=True)
class Allocation:
    """Identifies what one transfer was lent in one generation. Equal block numbers alone do not make it the same."""

    tid: int
    gen: int
    blocks: tuple[int, ...]


class BlockAllocator:
    """Lends blocks, each to one owner at a time, and takes an allocation back whole, once, from its owner.

    At all times free + in use + quarantined = n_blocks. Quarantined blocks belong to transfers that have ended for
    their clients, while the encoder may still write.
    """

    def __init__(self, n_blocks: int, *, is_strict: bool = __debug__) -> None:
        """Makes an allocator whose blocks are all free. One that is not strict counts wrong frees and goes on."""
        self.n_blocks = n_blocks
        self.n_refused = 0  # frees of what was not lent
        self._is_strict = is_strict
        self._free = deque(range(n_blocks))
        self._lent: dict[tuple[int, int], Allocation] = {}
        self._quarantined: set[tuple[int, int]] = set()

    @property
    def n_free(self) -> int:
        return len(self._free)

    @property
    def n_quarantined(self) -> int:
        return sum(len(self._lent[key].blocks) for key in self._quarantined)

    @property
    def n_in_use(self) -> int:
        return sum(len(allocation.blocks) for allocation in self._lent.values()) - self.n_quarantined

    def allocate(self, tid: int, gen: int, n_wanted: int) -> Allocation:
        """Lends as many blocks as are wanted and free. Raises Misuse if that is none, or a generation comes again."""
        n_lent = min(n_wanted, len(self._free))
        if n_lent < 1 or (tid, gen) in self._lent:
            raise Misuse(f"transfer {tid} asks for {n_wanted} blocks of {self.n_free} in generation {gen}")
        allocation = Allocation(tid, gen, tuple(self._free.popleft() for _ in range(n_lent)))
        self._lent[tid, gen] = allocation
        return allocation

    def quarantine(self, allocation: Allocation) -> None:
        """Marks blocks as waiting for the encoder to be quiet; they stay lent."""
        if self._is_lent(allocation):
            self._quarantined.add((allocation.tid, allocation.gen))

    def free(self, allocation: Allocation) -> bool:
        """Takes an allocation back, and returns whether it was lent. Raises Misuse if it was not and this is strict."""
        if not self._is_lent(allocation):
            return False
        key = (allocation.tid, allocation.gen)
        del self._lent[key]
        self._quarantined.discard(key)
        self._free.extend(allocation.blocks)
        return True

    def _is_lent(self, allocation: Allocation) -> bool:
        if self._lent.get((allocation.tid, allocation.gen)) == allocation:
            return True
        self.n_refused += 1
        if self._is_strict:
            raise Misuse(f"{allocation} is not lent")
        return False


class TransferSession:
    """Holds what is known of one transfer, and decides what each message of the encoder means for it.

    The invariant is done <= filled <= gen <= done + 1. An allocation is known by its generation: equal blocks, lengths
    or states may belong to any round. Nobody but the core changes a session.
    """

    def __init__(self, rid: int, image: ImagePixels, now: float, ends_at: float) -> None:
        self.rid = rid
        self.image = image
        self.deadline = ends_at
        self.state = TransferState.QUEUED
        self.changed_at = now  # when the last valid thing happened to it
        self.tid = 0  # what the encoder knows it by, once it is open
        self.gen = 0  # the last that was granted
        self.filled = 0  # the last that the encoder has reported
        self.done = 0  # the last that was copied
        self.received = 0  # rows that were copied
        self.total = 0  # rows; 0 until they are described
        self.n_filled = 0  # rows of the generation that was filled last
        self.capacity = 0  # rows of the allocation
        self.allocation: Allocation | None = None
        self.meta: TransferMeta | None = None
        self.is_abandoned = False  # the encoder has given it up, or has ended
        self.reserved = 0  # bytes of the staging budget
        self.rows: bytearray | None = None
        self.result: TransferResult | None = None
        self.reason = ""

    def enter(self, state: TransferState, now: float) -> None:
        """Moves on to a state. Raises IllegalTransition."""
        if state not in MOVES[self.state]:
            raise IllegalTransition(f"transfer {self.rid}", self.state, state)
        self.state = state
        self.changed_at = now

    @property
    def poll(self) -> Poll:
        """Says how far it is; reading it changes nothing."""
        if self.state is TransferState.DONE:
            return Poll.SUCCESS
        if self.state in (TransferState.FAILED, TransferState.DRAINING):
            return Poll.FAILED
        if self.state is TransferState.QUEUED:
            return Poll.BOOTSTRAPPING
        return Poll.TRANSFERRING if self.gen else Poll.WAITING

    @property
    def is_complete(self) -> bool:
        """Says whether all rows are copied."""
        return self.total > 0 and self.received == self.total

    @property
    def is_to_be_copied(self) -> bool:
        """Says whether rows lie in the pool that were not copied yet. That is so once for each generation."""
        return self.filled == self.gen and self.done < self.gen

    @property
    def is_quiet(self) -> bool:
        """Says whether the encoder can write nothing more into the blocks of the transfer."""
        return self.is_abandoned or self.filled == self.gen

    def grant(self, allocation: Allocation, capacity: int) -> None:
        """Begins a generation. Raises Misuse unless the one before it was copied and freed."""
        if allocation.gen != self.gen + 1 or self.done != self.gen or self.allocation is not None:
            raise Misuse(f"transfer {self.rid} gets generation {allocation.gen} after {self.done} of {self.gen}")
        self.gen = allocation.gen
        self.allocation = allocation
        self.capacity = capacity

    def describe(self, message: TransferMeta) -> None:
        """Records what the item consists of."""
        self.meta = message
        self.total = message.total

    def fill(self, message: BlocksFilled) -> None:
        """Records that the current generation is written."""
        self.filled = self.gen
        self.n_filled = message.n

    def end_generation(self) -> None:
        """Records that the rows of the current generation were copied and its blocks freed."""
        self.done = self.gen
        self.received += self.n_filled
        self.allocation = None

    def find_fault_in_meta(self, message: TransferMeta, max_rows: int, n_embd: int) -> str:
        """Says what is wrong with a description of the item; empty if nothing is."""
        segments = [segment for segment in message.segments if isinstance(segment, RowSegment)]
        n_rows = sum(segment.n for segment in segments)
        if not 1 <= message.total <= max_rows:
            return f"{message.total} rows, where 1 to {max_rows} are allowed"
        if message.n_embd != n_embd:
            return f"rows of width {message.n_embd}, where {n_embd} was agreed on"
        if any(segment.n < 1 for segment in segments):
            return "a segment without rows"
        if n_rows != message.total:
            return f"segments of {n_rows} rows in an item of {message.total}"
        if any(len(segment.positions) != (segment.n if segment.is_mrope else 0) for segment in segments):
            return "a segment with more or fewer positions than its rows have"
        if any(segment.n_positions < 0 for segment in segments):
            return "a segment that moves its sequence back"
        if self.meta is not None and message != self.meta:
            return "another description than before"
        return ""

    def find_fault_in_fill(self, message: BlocksFilled) -> str:
        """Says what is wrong with a report of the current generation; empty if it is exactly what the grant implies."""
        if message.total != self.total:
            return f"{message.total} rows, where {self.total} were announced"
        n = min(self.total - self.received, self.capacity)
        if (message.offset, message.n) != (self.received, n):
            return f"{message.n} rows from {message.offset} on, where {n} from {self.received} on were due"
        return ""
