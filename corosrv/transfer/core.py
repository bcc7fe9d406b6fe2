"""Decides what happens to transfers, without any I/O.

Inputs are `submit`, `cancel`, `deliver`, `encoder_up`, `encoder_down`, `set_time` and `tick`; outputs are the outbox,
the trace, `kill_wanted`, and what `poll`, `result` and `stats` say. Messages of the encoder change sessions, and
`tick` alone copies, lends blocks and opens. A tick after which nothing new came does nothing.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol

from corosrv.errors import EncoderBusy, Misuse, ProtocolError, RowsNotFinite
from corosrv.transfer.blocks import Allocation, BlockAllocator
from corosrv.transfer.limits import TransferLimits
from corosrv.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    Geometry,
    GrantBlocks,
    OpenTransfer,
    Payload,
    ToEncoder,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.transfer.session import TransferSession
from corosrv.transfer.states import ACTIVE, ENDED_FOR_CLIENT, Poll, TransferResult, TransferState
from corosrv.transfer.stats import IgnoredReason, TransferCounters, TransferStats
from corosrv.transfer.trace import Trace, TraceEvent, TraceKind

log = logging.getLogger("corosrv.transfer")

MAX_ENDED = 1024  # transfers that have ended and were not forgotten; the oldest go


class RowStore(Protocol):
    """Is the memory that rows arrive in."""

    def copy_rows(self, epoch: int, allocation: Allocation, offset: int, n: int, into: memoryview) -> None:
        """Copies `n` rows, of which the first is row `offset` of its item.

        Raises ProtocolError for blocks that are not headed so, before or after copying, and RowsNotFinite.
        """


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """Says how a transfer ended. `rows` and `meta` are there after success alone: rows of little-endian float32."""

    result: TransferResult
    reason: str
    rows: bytearray | None
    meta: TransferMeta | None


class TransferCore:
    """Owns the blocks, the ids and the sessions of one pool. One greenlet at a time may call it; nothing waits."""

    def __init__(self, geometry: Geometry, limits: TransferLimits, store: RowStore) -> None:
        self.outbox: list[ToEncoder] = []  # whoever sends empties it
        self.trace = Trace()
        self.kill_wanted: int | None = None  # the epoch of an encoder that does not answer
        self._geometry = geometry
        self._limits = limits
        self._store = store
        self._allocator = BlockAllocator(geometry.n_blocks)
        self._counters = TransferCounters()
        self._now = 0.0
        self._epoch = 0
        self._is_up = False
        self._last_rid = 0
        self._last_tid = 0
        self._staging_bytes = 0
        self._sessions: dict[int, TransferSession] = {}  # by rid
        self._live: dict[int, TransferSession] = {}  # by tid, those that the encoder may speak of
        # Dicts serve as ordered sets: the next in line is the first.
        self._queued: dict[int, TransferSession] = {}
        self._need_memory: dict[int, TransferSession] = {}
        self._need_blocks: dict[int, TransferSession] = {}
        self._ready: dict[int, TransferSession] = {}
        self._ended: dict[int, None] = {}

    def submit(self, source: str, payload: Payload, deadline: float | None = None) -> int:
        """Queues an item, and returns the id of its transfer. `deadline`: seconds from now; None for the default.

        Raises EncoderBusy if too many wait.
        """
        if len(self._queued) >= self._limits.max_queued:
            raise EncoderBusy(self._limits.max_queued)
        self._last_rid += 1
        ends_at = self._now + (self._limits.deadline if deadline is None else deadline)
        session = TransferSession(self._last_rid, source, payload, self._now, ends_at)
        self._sessions[session.rid] = self._queued[session.rid] = session
        return session.rid

    def cancel(self, rid: int) -> None:
        """Ends a transfer at once for its client. Ended and unknown ones are left as they are."""
        session = self._sessions.get(rid)
        if session is not None and session.state not in ENDED_FOR_CLIENT:
            self._fail(session, TransferResult.CANCELLED, "the transfer was cancelled")

    def poll(self, rid: int) -> Poll:
        """Says how far a transfer is; asking changes nothing. Raises Misuse for one that is not known."""
        return self._session(rid).poll

    def result(self, rid: int) -> TransferOutcome | None:
        """Returns how a transfer ended, None before that; asking changes nothing. Raises Misuse as `poll` does."""
        session = self._session(rid)
        if session.result is None:
            return None
        return TransferOutcome(session.result, session.reason, session.rows, session.meta)

    def rid_of(self, tid: int) -> int | None:
        """Returns the id of the transfer that the encoder knows as `tid`; None once it has ended."""
        session = self._live.get(tid)
        return None if session is None else session.rid

    def forget(self, rid: int) -> None:
        """Cancels a transfer that runs, and drops its rows and result. Unknown ones are nothing to do for."""
        self.cancel(rid)
        self._sessions.pop(rid, None)
        self._ended.pop(rid, None)

    def stats(self) -> TransferStats:
        """Returns the counters."""
        return self._counters.snapshot(
            n_free=self._allocator.n_free,
            n_in_use=self._allocator.n_in_use,
            n_quarantined=self._allocator.n_quarantined,
            n_active=self._n_active,
            n_queued=len(self._queued),
            staging_bytes=self._staging_bytes,
        )

    def encoder_up(self, epoch: int) -> None:
        """Records that the encoder process of this epoch is ready. Raises Misuse while another was not reaped."""
        if epoch == self._epoch and self._is_up:
            return
        if self._is_up or epoch <= self._epoch:
            raise Misuse(f"encoder {epoch} cannot follow {self._epoch}, which is {'up' if self._is_up else 'down'}")
        self._epoch = epoch
        self._is_up = True

    def encoder_down(self, epoch: int) -> None:
        """Records that the encoder process of this epoch was reaped: nobody writes any more."""
        if epoch != self._epoch or not self._is_up:
            return
        self._is_up = False
        self.kill_wanted = None
        for session in list(self._live.values()):
            if session.state is TransferState.DRAINING:
                self._drained(session)
            else:
                self._fail(session, TransferResult.LOST, "the encoder process ended", is_quiet=True, is_told=False)
        self.outbox.clear()

    def set_time(self, now: float) -> None:
        """Sets the time, in seconds; it never goes backwards."""
        self._now = max(self._now, now)

    def next_deadline(self) -> float:
        """Returns when a tick has something to do if nothing else happens; infinity if never."""
        sessions = [*self._queued.values(), *self._live.values()]
        return min((self._due_at(session)[0] for session in sessions), default=math.inf)

    def deliver(self, message: ToLanguage) -> None:
        """Takes a message of the encoder. Late, repeated and unknown ones are counted and dropped."""
        if not self._is_up or message.epoch != self._epoch:
            return self._ignore(IgnoredReason.EPOCH)
        tid = getattr(message, "tid", 0)
        session = self._live.get(tid)
        if session is None:
            return self._ignore(IgnoredReason.LATE if 1 <= tid <= self._last_tid else IgnoredReason.UNKNOWN)
        if session.state is TransferState.DRAINING:
            return self._deliver_draining(session, message)
        match message:
            case TransferMeta():
                self._deliver_meta(session, message)
            case BlocksFilled():
                self._deliver_filled(session, message)
            case EncodeFailed():
                reason = f"the encoder failed: {message.text}"
                self._fail(session, TransferResult.ENCODER, reason, is_quiet=True, is_told=False)
            case TransferAborted():  # whatever it is worth, it promises that nothing more will be written
                self._violation(session, "an end that nobody asked for", is_quiet=True)

    def tick(self) -> None:
        """Does all that is possible now: ends what is overdue, copies, lends blocks, opens."""
        self._expire()
        for session in list(self._ready.values()):
            if session.is_to_be_copied:
                self._process(session)
        self._reserve_memory()
        self._grant_blocks()
        self._open_queued()

    # Messages.

    def _deliver_draining(self, session: TransferSession, message: ToLanguage) -> None:
        is_quiet = isinstance(message, (TransferAborted, EncodeFailed))
        if is_quiet or (isinstance(message, BlocksFilled) and message.gen == session.gen):
            self._drained(session)
        else:
            self._ignore(IgnoredReason.LATE)

    def _deliver_meta(self, session: TransferSession, message: TransferMeta) -> None:
        wrong = session.wrong_with_meta(message, self._limits.max_rows, self._geometry.row_bytes // 4)
        if wrong:
            return self._violation(session, f"a description of {wrong}")
        if session.meta is not None:
            return self._ignore(IgnoredReason.DUPLICATE)
        session.meta = message
        session.total = message.total
        if not self._fits(session):
            return
        if session.state is TransferState.OPENING:
            if session.is_complete:
                self._finish(session)
            elif session.allocation is not None:
                self._enter(session, TransferState.FILLING)
            else:
                self._wait_for_room(session)

    def _deliver_filled(self, session: TransferSession, message: BlocksFilled) -> None:
        if message.gen > session.gen:
            return self._violation(session, f"generation {message.gen} filled, where {session.gen} was granted")
        if message.gen < session.gen:
            return self._ignore(IgnoredReason.LATE)
        if session.filled == session.gen:
            return self._ignore(IgnoredReason.DUPLICATE)
        if wrong := session.wrong_with_fill(message, self._limits.max_rows):
            return self._violation(session, wrong)
        session.fill(message)
        if self._fits(session):
            self._enter(session, TransferState.READY)
            self._ready[session.rid] = session

    def _ignore(self, reason: IgnoredReason) -> None:
        self._counters.ignored[reason] += 1

    # What a tick does.

    def _expire(self) -> None:
        for session in [*self._queued.values(), *self._live.values()]:
            due_at, reason = self._due_at(session)
            if self._now < due_at:
                continue
            if session.state is TransferState.DRAINING:
                self._want_kill(session)
            else:
                self._fail(session, TransferResult.TIMEOUT, reason)

    def _due_at(self, session: TransferSession) -> tuple[float, str]:
        """Returns when the time of a transfer is over, and which time that is."""
        limits = self._limits
        if session.state is TransferState.DRAINING:
            is_asked = self.kill_wanted == self._epoch
            return (math.inf if is_asked else session.changed_at + limits.drain_timeout), "draining"
        times = [(session.deadline, "the time of the transfer was over")]
        if session.state is TransferState.OPENING:
            times.append((session.changed_at + limits.open_timeout, "the encoder did not encode in time"))
        elif session.state is TransferState.FILLING:
            times.append((session.changed_at + limits.round_timeout, "the encoder did not write in time"))
        return min(times)

    def _want_kill(self, session: TransferSession) -> None:
        if self.kill_wanted == self._epoch:
            return
        self.kill_wanted = self._epoch
        self._counters.n_kills += 1
        self._trace(TraceKind.KILL, session)
        log.warning("encoder %d does not answer a cancellation and is to be killed", self._epoch)

    def _process(self, session: TransferSession) -> None:
        """Copies a generation out of the pool and frees its blocks, once."""
        try:
            self._copy(session)
        except ProtocolError as error:
            self._counters.n_not_finite += isinstance(error, RowsNotFinite)
            return self._violation(session, str(error))
        self._free(session)
        session.end_generation()
        self._counters.n_rounds += 1
        self._counters.n_rows += session.n_filled
        del self._ready[session.rid]
        if not session.is_complete:
            self._wait_for_room(session)
        elif session.meta is None:
            self._enter(session, TransferState.OPENING)  # nobody could use rows without it
        else:
            self._finish(session)

    def _copy(self, session: TransferSession) -> None:
        assert session.allocation is not None
        row_bytes = self._geometry.row_bytes
        if session.rows is None:
            session.rows = bytearray(session.total * row_bytes)
        first, last = session.received, session.received + session.n_filled
        into = memoryview(session.rows)[first * row_bytes : last * row_bytes]
        self._trace(TraceKind.COPY, session)
        self._store.copy_rows(self._epoch, session.allocation, first, session.n_filled, into)

    def _wait_for_room(self, session: TransferSession) -> None:
        self._enter(session, TransferState.NEED)
        line = self._need_blocks if session.reserved else self._need_memory
        line[session.rid] = session

    def _reserve_memory(self) -> None:
        """Reserves memory for whole items, in order of need: who waits for it holds nothing."""
        for session in list(self._need_memory.values()):
            n_bytes = session.total * self._geometry.row_bytes
            if self._staging_bytes + n_bytes > self._limits.staging_budget:
                break
            self._reserve(session, n_bytes)
            del self._need_memory[session.rid]
            self._need_blocks[session.rid] = session

    def _reserve(self, session: TransferSession, n_bytes: int) -> None:
        self._staging_bytes += n_bytes - session.reserved
        session.reserved = n_bytes

    def _grant_blocks(self) -> None:
        while self._need_blocks and self._allocator.n_free:
            session = next(iter(self._need_blocks.values()))
            del self._need_blocks[session.rid]
            n_wanted = -(-(session.total - session.received) // self._geometry.block_rows)
            self._grant(session, min(n_wanted, self._limits.max_blocks_per_round))
            self._enter(session, TransferState.FILLING)

    def _grant(self, session: TransferSession, n_wanted: int) -> None:
        allocation = self._allocator.allocate(session.tid, session.gen + 1, n_wanted)
        capacity = len(allocation.blocks) * self._geometry.block_rows
        session.grant(allocation, capacity)
        self._counters.grant_blocks[len(allocation.blocks)] += 1
        self._trace(TraceKind.ALLOCATE, session)
        self._send(
            session,
            TraceKind.GRANT,
            GrantBlocks(self._epoch, session.tid, session.gen, session.received, allocation.blocks, capacity),
        )

    def _open_queued(self) -> None:
        while self._is_up and self._queued and self._n_active < self._limits.max_active:
            session = next(iter(self._queued.values()))
            del self._queued[session.rid]
            self._last_tid += 1
            session.tid = self._last_tid
            self._live[session.tid] = session
            self._enter(session, TransferState.OPENING)
            message = OpenTransfer(self._epoch, session.tid, session.source, session.payload)
            self._send(session, TraceKind.OPEN, message)
            self._grant_early(session)

    def _grant_early(self, session: TransferSession) -> None:
        """Lends blocks before the length is known, if nobody waits and memory for any length is there."""
        n_wanted = min(self._limits.prealloc_blocks, self._limits.max_blocks_per_round)
        n_bytes = min(self._limits.max_rows * self._geometry.row_bytes, self._limits.staging_budget)
        is_free = self._staging_bytes + n_bytes <= self._limits.staging_budget and self._allocator.n_free > 0
        if n_wanted and is_free and not self._need_blocks and not self._need_memory:
            self._reserve(session, n_bytes)
            self._grant(session, n_wanted)

    # Ends.

    def _fits(self, session: TransferSession) -> bool:
        """Returns whether the item may be as long as it is, and fails it if not; what is reserved too much is freed."""
        n_bytes = session.total * self._geometry.row_bytes
        if n_bytes > self._limits.staging_budget:
            reason = f"the item has {session.total} rows, more than the memory for rows holds"
            self._fail(session, TransferResult.TOO_LARGE, reason, is_quiet=session.filled == session.gen)
            return False
        if session.reserved:
            self._reserve(session, n_bytes)
        return True

    def _finish(self, session: TransferSession) -> None:
        self._send(session, TraceKind.CLOSE, CloseTransfer(self._epoch, session.tid))
        self._counters.rounds_per_item[session.gen] += 1
        self._enter(session, TransferState.DONE)
        self._ended_for_client(session, TransferResult.SUCCESS, "")
        self._gone(session)

    def _violation(self, session: TransferSession, words: str, *, is_quiet: bool = False) -> None:
        log.error(
            "encoder %d broke the protocol in transfer %d, generation %d, %d of %d rows: %s",
            self._epoch,
            session.tid,
            session.gen,
            session.received,
            session.total,
            words,
        )
        self._fail(session, TransferResult.PROTOCOL, f"the encoder broke its protocol: {words}", is_quiet=is_quiet)

    def _fail(
        self,
        session: TransferSession,
        result: TransferResult,
        reason: str,
        *,
        is_quiet: bool = False,
        is_told: bool = True,
    ) -> None:
        """Ends a transfer for its client. Its blocks stay lent unless the encoder is known to be quiet."""
        is_quiet = is_quiet or session.state is TransferState.READY
        for line in (self._queued, self._need_memory, self._need_blocks, self._ready):
            line.pop(session.rid, None)
        if is_told and session.tid:
            self._send(session, TraceKind.CANCEL, CancelTransfer(self._epoch, session.tid))
        session.rows = None
        if session.allocation is not None and not is_quiet:
            self._allocator.quarantine(session.allocation)
            self._trace(TraceKind.QUARANTINE, session)
            self._enter(session, TransferState.DRAINING)
            self._ended_for_client(session, result, reason)
            return
        if session.allocation is not None:
            self._free(session)
        self._enter(session, TransferState.FAILED)
        self._ended_for_client(session, result, reason)
        self._gone(session)

    def _ended_for_client(self, session: TransferSession, result: TransferResult, reason: str) -> None:
        session.result = result
        session.reason = reason
        self._reserve(session, 0)
        self._counters.finished[result] += 1
        self._trace(TraceKind.END, session)

    def _drained(self, session: TransferSession) -> None:
        self._free(session)
        self._enter(session, TransferState.FAILED)
        self._gone(session)

    def _free(self, session: TransferSession) -> None:
        assert session.allocation is not None
        self._trace(TraceKind.FREE, session)
        self._allocator.free(session.allocation)
        session.allocation = None

    def _gone(self, session: TransferSession) -> None:
        self._live.pop(session.tid, None)
        if session.rid in self._sessions:
            self._ended[session.rid] = None
        while len(self._ended) > MAX_ENDED:
            self.forget(next(iter(self._ended)))

    # Small things.

    @property
    def _n_active(self) -> int:
        return sum(session.state in ACTIVE for session in self._live.values())

    def _session(self, rid: int) -> TransferSession:
        if rid not in self._sessions:
            raise Misuse(f"transfer {rid} is not known, or was forgotten")
        return self._sessions[rid]

    def _enter(self, session: TransferSession, state: TransferState) -> None:
        self._counters.add_time(session.state, self._now - session.changed_at)
        session.enter(state, self._now)

    def _send(self, session: TransferSession, kind: TraceKind, message: ToEncoder) -> None:
        self.outbox.append(message)
        self._trace(kind, session)

    def _trace(self, kind: TraceKind, session: TransferSession) -> None:
        blocks = session.allocation.blocks if session.allocation is not None else ()
        self.trace.add(TraceEvent(kind, session.rid, session.tid, session.gen, blocks, self._epoch))
