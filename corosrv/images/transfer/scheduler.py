"""Decides what a tick does: who is overdue, whose rows are copied, who gets memory and blocks, who is opened."""

from __future__ import annotations

import math
from typing import Protocol

from corosrv.base.errors import ProtocolError, RowsNotFinite
from corosrv.images.transfer.ledger import TransferLedger
from corosrv.images.transfer.session import Allocation, TransferResult, TransferSession, TransferState


class RowStore(Protocol):
    """Defines the memory that rows arrive in."""

    def copy_rows(self, epoch: int, allocation: Allocation, offset: int, n: int, into: memoryview) -> None:
        """Copies `n` rows, of which the first is row `offset` of its item.

        Raises ProtocolError for blocks that are not headed so, before or after copying, and RowsNotFinite.
        """


class TransferScheduler:
    """Carries out in a tick all that is possible at that time. A second tick at once finds nothing left to do."""

    def __init__(self, ledger: TransferLedger, store: RowStore) -> None:
        self._ledger = ledger
        self._store = store

    def tick(self) -> None:
        """Takes all steps that are possible now. Copies at most one round of each transfer; waits for nothing."""
        self._end_overdue()
        for session in list(self._ledger.ready.values()):
            if session.is_to_be_copied:
                self._process(session)
        self._reserve_memory()
        self._lend_blocks()
        self._open_queued()

    def next_deadline(self) -> float:
        """Returns when a tick has something to do if nothing else happens; infinity if never."""
        return min((self._deadline(session)[0] for session in self._unfinished()), default=math.inf)

    # Time.

    def _end_overdue(self) -> None:
        for session in self._unfinished():
            due_at, reason = self._deadline(session)
            if self._ledger.now < due_at:
                continue
            if session.state is TransferState.DRAINING:
                self._ledger.want_kill(session)
            else:
                self._ledger.fail(session, TransferResult.TIMEOUT, reason)

    def _unfinished(self) -> list[TransferSession]:
        return [*self._ledger.queued.values(), *self._ledger.live.values()]

    def _deadline(self, session: TransferSession) -> tuple[float, str]:
        """Returns when the time of a transfer is over, and which time that is."""
        limits = self._ledger.limits
        if session.state is TransferState.DRAINING:
            is_kill_wanted = self._ledger.kill_wanted == self._ledger.epoch
            return math.inf if is_kill_wanted else session.changed_at + limits.drain_timeout, "draining"
        deadlines = [(session.deadline, "the time of the transfer was over")]
        if session.state is TransferState.OPENING:
            deadlines.append((session.changed_at + limits.open_timeout, "the encoder did not encode in time"))
        elif session.state is TransferState.FILLING:
            deadlines.append((session.changed_at + limits.round_timeout, "the encoder did not write in time"))
        return min(deadlines)

    # Rows.

    def _process(self, session: TransferSession) -> None:
        """Copies a generation out of the pool and frees its blocks, once."""
        try:
            self._copy(session)
        except ProtocolError as error:
            self._ledger.counters.n_not_finite += isinstance(error, RowsNotFinite)
            return self._ledger.fail_for_violation(session, str(error))
        self._ledger.end_copy(session)
        if session.is_complete:
            self._ledger.finish(session)
        else:
            self._ledger.wait_for_room(session)

    def _copy(self, session: TransferSession) -> None:
        assert session.allocation is not None
        into = self._ledger.begin_copy(session)
        self._store.copy_rows(self._ledger.epoch, session.allocation, session.received, session.n_filled, into)

    # Room.

    def _reserve_memory(self) -> None:
        """Reserves memory for whole items, in order of need. Transfers that wait for it hold nothing."""
        ledger = self._ledger
        for session in list(ledger.need_memory.values()):
            n_bytes = session.total * ledger.geometry.row_bytes
            if ledger.staging_bytes + n_bytes > ledger.limits.staging_budget:
                break
            ledger.reserve(session, n_bytes)
            del ledger.need_memory[session.rid]
            ledger.need_blocks[session.rid] = session

    def _lend_blocks(self) -> None:
        """Lends what is free, in order of need; nobody waits for enough to carry a whole item."""
        ledger = self._ledger
        while ledger.need_blocks and ledger.allocator.n_free:
            session = next(iter(ledger.need_blocks.values()))
            n_needed = -(-(session.total - session.received) // ledger.geometry.block_rows)
            ledger.grant(session, min(n_needed, ledger.limits.max_blocks_per_round))

    def _open_queued(self) -> None:
        ledger = self._ledger
        while ledger.is_up and ledger.queued and ledger.n_active < ledger.limits.max_active:
            ledger.open(next(iter(ledger.queued.values())))
