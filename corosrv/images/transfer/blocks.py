"""Hands out the blocks of a pool."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from corosrv.base.errors import Misuse


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
