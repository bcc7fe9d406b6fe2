"""Keeps what each transfer holds: its place in a line, its blocks and its memory."""

from __future__ import annotations

import logging

from corosrv.images.transfer import messages
from corosrv.images.transfer.session import ACTIVE, BlockAllocator, TransferResult, TransferSession, TransferState
from corosrv.images.transfer.stats import Trace, TraceEvent, TraceKind, TransferCounters, TransferLimits, TransferStats

log = logging.getLogger("corosrv.transfer")

MAX_ENDED = 1024  # transfers that have ended and were not forgotten; the oldest go


class TransferLedger:
    """Owns the sessions, the ids, the blocks and the memory of one pool.

    Each method is one step of a transfer: it moves the session on, keeps the lines and sums right, and records the
    step in the trace and, where the encoder has to know, in the outbox. When to take which step is decided by
    `TransferInbox` for the messages of the encoder and by `TransferScheduler` for a tick.
    """

    def __init__(self, geometry: messages.Geometry, limits: TransferLimits) -> None:
        self.geometry = geometry
        self.limits = limits
        self.allocator = BlockAllocator(geometry.n_blocks)
        self.counters = TransferCounters()
        self.trace = Trace()
        self.outbox: list[messages.ToEncoder] = []
        self.now = 0.0
        self.epoch = 0
        self.is_up = False  # whether the encoder of this epoch runs
        self.kill_wanted: int | None = None  # the epoch of an encoder that does not answer
        self.last_tid = 0
        self.staging_bytes = 0  # reserved for rows
        self.sessions: dict[int, TransferSession] = {}  # by rid, until they are forgotten
        self.live: dict[int, TransferSession] = {}  # by tid, those that the encoder may write for
        # The lines that transfers wait in, by rid. The first of a dict is the first in line.
        self.queued: dict[int, TransferSession] = {}
        self.need_memory: dict[int, TransferSession] = {}
        self.need_blocks: dict[int, TransferSession] = {}
        self.ready: dict[int, TransferSession] = {}
        self._last_rid = 0
        self._ended: dict[int, None] = {}  # rids, the oldest first

    # The way of a transfer that succeeds.

    def queue(self, image: messages.ImagePixels, ends_at: float) -> TransferSession:
        self._last_rid += 1
        session = TransferSession(self._last_rid, image, self.now, ends_at)
        self.sessions[session.rid] = self.queued[session.rid] = session
        return session

    def open(self, session: TransferSession) -> None:
        """Takes a transfer out of the queue, and asks the encoder for its rows."""
        del self.queued[session.rid]
        self.last_tid += 1
        session.tid = self.last_tid
        self.live[session.tid] = session
        self.enter(session, TransferState.OPENING)
        self._send(session, TraceKind.OPEN, messages.OpenTransfer(self.epoch, session.tid, session.image))

    def wait_for_room(self, session: TransferSession) -> None:
        """Puts a transfer at the end of the line for memory, or of the line for blocks once it has its memory."""
        self.enter(session, TransferState.NEED)
        line = self.need_blocks if session.reserved else self.need_memory
        line[session.rid] = session

    def reserve(self, session: TransferSession, n_bytes: int) -> None:
        """Sets what a transfer takes of the staging budget."""
        self.staging_bytes += n_bytes - session.reserved
        session.reserved = n_bytes

    def grant(self, session: TransferSession, n_wanted: int) -> None:
        """Lends blocks to a transfer, as many as it wants and are free, and tells the encoder."""
        del self.need_blocks[session.rid]
        allocation = self.allocator.allocate(session.tid, session.gen + 1, n_wanted)
        capacity = len(allocation.blocks) * self.geometry.block_rows
        session.grant(allocation, capacity)
        self.counters.grant_blocks[len(allocation.blocks)] += 1
        self._trace(TraceKind.ALLOCATE, session)
        message = messages.GrantBlocks(
            self.epoch, session.tid, session.gen, session.received, allocation.blocks, capacity
        )
        self._send(session, TraceKind.GRANT, message)
        self.enter(session, TransferState.FILLING)

    def mark_ready(self, session: TransferSession) -> None:
        """Marks a transfer whose rows the next tick copies."""
        self.enter(session, TransferState.READY)
        self.ready[session.rid] = session

    def begin_copy(self, session: TransferSession) -> memoryview:
        """Returns where the rows of this generation belong."""
        self._trace(TraceKind.COPY, session)
        row_bytes = self.geometry.row_bytes
        if session.rows is None:
            session.rows = bytearray(session.total * row_bytes)
        last = session.received + session.n_filled
        return memoryview(session.rows)[session.received * row_bytes : last * row_bytes]

    def end_copy(self, session: TransferSession) -> None:
        """Frees the blocks of a generation whose rows were copied."""
        del self.ready[session.rid]
        self._free(session)
        session.end_generation()
        self.counters.n_rounds += 1
        self.counters.n_rows += session.n_filled

    def finish(self, session: TransferSession) -> None:
        """Ends a transfer that has all its rows, and has the encoder drop its own."""
        self._send(session, TraceKind.CLOSE, messages.CloseTransfer(self.epoch, session.tid))
        self.counters.rounds_per_item[session.gen] += 1
        self.enter(session, TransferState.DONE)
        self._end_for_client(session, TransferResult.SUCCESS, "")
        self._retire(session)

    # Ends of other kinds.

    def fail(self, session: TransferSession, result: TransferResult, reason: str, *, is_told: bool = True) -> None:
        """Ends a transfer for its client. Its blocks stay lent unless the encoder is known to be quiet.

        `is_told`: whether the encoder hears of it. A transfer that waits for an answer is freed by `release`.
        """
        for line in (self.queued, self.need_memory, self.need_blocks, self.ready):
            line.pop(session.rid, None)
        session.rows = None
        if is_told and session.tid:
            self._send(session, TraceKind.CANCEL, messages.CancelTransfer(self.epoch, session.tid))
        if session.allocation is not None and not session.is_quiet:
            self.allocator.quarantine(session.allocation)
            self._trace(TraceKind.QUARANTINE, session)
            self.enter(session, TransferState.DRAINING)
            self._end_for_client(session, result, reason)
            return
        self._end_for_client(session, result, reason)
        self.release(session)

    def fail_for_violation(self, session: TransferSession, words: str) -> None:
        """Ends a transfer for which the encoder said or wrote what it must not; others go on."""
        log.error(
            "encoder %d broke the protocol in transfer %d, generation %d, %d of %d rows: %s",
            self.epoch,
            session.tid,
            session.gen,
            session.received,
            session.total,
            words,
        )
        self.fail(session, TransferResult.PROTOCOL, f"the encoder broke its protocol: {words}")

    def release(self, session: TransferSession) -> None:
        """Frees what a failed transfer was lent, once the encoder writes no more for it."""
        if session.allocation is not None:
            self._free(session)
        self.enter(session, TransferState.FAILED)
        self._retire(session)

    def want_kill(self, session: TransferSession) -> None:
        """Asks for the end of the encoder process, once for each."""
        self.kill_wanted = self.epoch
        self.counters.n_kills += 1
        self._trace(TraceKind.KILL, session)
        log.warning("encoder %d does not answer a cancellation and is to be killed", self.epoch)

    def forget(self, rid: int) -> None:
        """Drops the rows and the result of a transfer that has ended for its client."""
        self.sessions.pop(rid, None)
        self._ended.pop(rid, None)

    # What the steps have in common.

    def enter(self, session: TransferSession, state: TransferState) -> None:
        """Moves a transfer on, and counts the time that it spent in its state."""
        self.counters.add_time(session.state, self.now - session.changed_at)
        session.enter(state, self.now)

    def _free(self, session: TransferSession) -> None:
        assert session.allocation is not None
        self._trace(TraceKind.FREE, session)
        self.allocator.free(session.allocation)
        session.allocation = None

    def _end_for_client(self, session: TransferSession, result: TransferResult, reason: str) -> None:
        session.result = result
        session.reason = reason
        self.reserve(session, 0)
        self.counters.finished[result] += 1
        self._trace(TraceKind.END, session)

    def _retire(self, session: TransferSession) -> None:
        self.live.pop(session.tid, None)
        if session.rid in self.sessions:
            self._ended[session.rid] = None
        while len(self._ended) > MAX_ENDED:
            self.forget(next(iter(self._ended)))

    def _send(self, session: TransferSession, kind: TraceKind, message: messages.ToEncoder) -> None:
        self.outbox.append(message)
        self._trace(kind, session)

    def _trace(self, kind: TraceKind, session: TransferSession) -> None:
        blocks = session.allocation.blocks if session.allocation is not None else ()
        self.trace.add(TraceEvent(kind, session.rid, session.tid, session.gen, blocks, self.epoch))

    @property
    def n_active(self) -> int:
        """Returns how many transfers are open and have not failed."""
        return sum(session.state in ACTIVE for session in self.live.values())

    def stats(self) -> TransferStats:
        """Returns the counters, and what is taken now."""
        return self.counters.snapshot(
            n_free=self.allocator.n_free,
            n_in_use=self.allocator.n_in_use,
            n_quarantined=self.allocator.n_quarantined,
            n_active=self.n_active,
            n_queued=len(self.queued),
            staging_bytes=self.staging_bytes,
        )
