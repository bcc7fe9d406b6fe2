"""Follows one transfer through its states."""

from __future__ import annotations

from corosrv.base.errors import IllegalTransition, Misuse
from corosrv.images.transfer.blocks import Allocation
from corosrv.images.transfer.messages import BlocksFilled, ImagePixels, RowSegment, TransferMeta
from corosrv.images.transfer.states import MOVES, Poll, TransferResult, TransferState


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
