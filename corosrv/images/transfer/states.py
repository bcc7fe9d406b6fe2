"""Defines the states of a transfer, and what a client sees of them."""

from __future__ import annotations

from enum import Enum, IntEnum


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
