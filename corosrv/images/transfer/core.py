"""Carries items from an encoder to its clients, without any I/O: the inputs and outputs of the transfers of one pool.

Inputs are `submit`, `cancel`, `deliver`, `encoder_up`, `encoder_down`, `set_time` and `tick`; outputs are the outbox,
the trace, `kill_wanted`, and what `poll`, `result` and `stats` say. `TransferInbox` decides what a message of the
encoder means, and `TransferScheduler` what a tick does: who is overdue, who gets memory and blocks, who is opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from corosrv.base.errors import EncoderBusy, Misuse, ProtocolError, RowsNotFinite
from corosrv.images.transfer import messages
from corosrv.images.transfer.ledger import TransferLedger
from corosrv.images.transfer.session import (
    ENDED_FOR_CLIENT,
    Allocation,
    Poll,
    TransferResult,
    TransferSession,
    TransferState,
)
from corosrv.images.transfer.stats import IgnoredReason, Trace, TransferLimits, TransferStats


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


class TransferInbox:
    """Takes the messages of the encoder. They move sessions on; rows are copied and blocks lent by a tick alone."""

    def __init__(self, ledger: TransferLedger) -> None:
        self._ledger = ledger

    def deliver(self, message: messages.ToLanguage) -> None:
        """Takes one message. Late, repeated and unknown ones are counted and dropped."""
        if not self._ledger.is_up or message.epoch != self._ledger.epoch:
            return self._ignore(IgnoredReason.EPOCH)
        tid = getattr(message, "tid", 0)
        session = self._ledger.live.get(tid)
        if session is None:
            return self._ignore(IgnoredReason.LATE if 1 <= tid <= self._ledger.last_tid else IgnoredReason.UNKNOWN)
        if session.state is TransferState.DRAINING:
            return self._end_draining(session, message)
        match message:
            case messages.TransferMeta():
                self._describe(session, message)
            case messages.BlocksFilled():
                self._fill(session, message)
            case messages.EncodeFailed():
                session.is_abandoned = True
                reason = f"the encoder failed: {message.text}"
                self._ledger.fail(session, TransferResult.ENCODER, reason, is_told=False)
            case messages.TransferAborted():
                session.is_abandoned = True
                self._ledger.fail_for_violation(session, "an end that nobody asked for")

    def _end_draining(self, session: TransferSession, message: messages.ToLanguage) -> None:
        is_current_fill = isinstance(message, messages.BlocksFilled) and message.gen == session.gen
        if is_current_fill or isinstance(message, (messages.TransferAborted, messages.EncodeFailed)):
            self._ledger.release(session)
        else:
            self._ignore(IgnoredReason.LATE)

    def _describe(self, session: TransferSession, message: messages.TransferMeta) -> None:
        n_embd = self._ledger.geometry.row_bytes // 4
        if fault := session.find_fault_in_meta(message, self._ledger.limits.max_rows, n_embd):
            return self._ledger.fail_for_violation(session, f"a description of {fault}")
        if session.meta is not None:
            return self._ignore(IgnoredReason.DUPLICATE)
        session.describe(message)
        if session.total * self._ledger.geometry.row_bytes > self._ledger.limits.staging_budget:
            reason = f"the item has {session.total} rows, more than the memory for rows holds"
            return self._ledger.fail(session, TransferResult.TOO_LARGE, reason)
        self._ledger.wait_for_room(session)

    def _fill(self, session: TransferSession, message: messages.BlocksFilled) -> None:
        if session.gen == 0 or message.gen > session.gen:  # nothing is lent before the item is described
            words = f"generation {message.gen} filled, where {session.gen} was granted"
            return self._ledger.fail_for_violation(session, words)
        if message.gen < session.gen:
            return self._ignore(IgnoredReason.LATE)
        if session.filled == session.gen:
            return self._ignore(IgnoredReason.DUPLICATE)
        if fault := session.find_fault_in_fill(message):
            return self._ledger.fail_for_violation(session, fault)
        session.fill(message)
        self._ledger.mark_ready(session)

    def _ignore(self, reason: IgnoredReason) -> None:
        self._ledger.counters.ignored[reason] += 1


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """Says how a transfer ended. `rows` and `meta` are there after success alone: rows of little-endian float32."""

    result: TransferResult
    reason: str
    rows: bytearray | None
    meta: messages.TransferMeta | None


class TransferCore:
    """Runs the transfers of one pool. One greenlet at a time may call it; nothing waits."""

    def __init__(self, geometry: messages.Geometry, limits: TransferLimits, store: RowStore) -> None:
        self._ledger = TransferLedger(geometry, limits)
        self._inbox = TransferInbox(self._ledger)
        self._scheduler = TransferScheduler(self._ledger, store)

    # For clients.

    def submit(self, image: messages.ImagePixels, deadline: float | None = None) -> int:
        """Queues an image, and returns the id of its transfer. `deadline`: seconds from now; None for the default.

        Raises EncoderBusy if too many wait.
        """
        limits = self._ledger.limits
        if len(self._ledger.queued) >= limits.max_queued:
            raise EncoderBusy(limits.max_queued)
        ends_at = self._ledger.now + (limits.deadline if deadline is None else deadline)
        return self._ledger.queue(image, ends_at).rid

    def cancel(self, rid: int) -> None:
        """Ends a transfer at once for its client. Ended and unknown ones are left as they are."""
        session = self._ledger.sessions.get(rid)
        if session is not None and session.state not in ENDED_FOR_CLIENT:
            self._ledger.fail(session, TransferResult.CANCELLED, "the transfer was cancelled")

    def poll(self, rid: int) -> Poll:
        """Says how far a transfer is; asking changes nothing. Raises Misuse for one that is not known."""
        return self._session(rid).poll

    def result(self, rid: int) -> TransferOutcome | None:
        """Returns how a transfer ended, None before that; asking changes nothing. Raises Misuse as `poll` does."""
        session = self._session(rid)
        if session.result is None:
            return None
        return TransferOutcome(session.result, session.reason, session.rows, session.meta)

    def forget(self, rid: int) -> None:
        """Cancels a transfer that runs, and drops its rows and result. Does nothing for an unknown one."""
        self.cancel(rid)
        self._ledger.forget(rid)

    def _session(self, rid: int) -> TransferSession:
        if rid not in self._ledger.sessions:
            raise Misuse(f"transfer {rid} is not known, or was forgotten")
        return self._ledger.sessions[rid]

    # For the pump, which does the I/O.

    @property
    def outbox(self) -> list[messages.ToEncoder]:
        """Holds the messages to the encoder, in order; whoever sends them empties it."""
        return self._ledger.outbox

    @property
    def kill_wanted(self) -> int | None:
        """Names the epoch of an encoder that does not answer and is to be killed; None if there is none."""
        return self._ledger.kill_wanted

    @property
    def trace(self) -> Trace:
        """Holds the last steps of all transfers."""
        return self._ledger.trace

    def rid_of(self, tid: int) -> int | None:
        """Returns which transfer the encoder knows by this id; None if it has ended."""
        session = self._ledger.live.get(tid)
        return None if session is None else session.rid

    def stats(self) -> TransferStats:
        """Returns the counters, and what is taken now."""
        return self._ledger.stats()

    def set_time(self, now: float) -> None:
        """Sets the time, in seconds; it never goes backwards."""
        self._ledger.now = max(self._ledger.now, now)

    def next_deadline(self) -> float:
        """Returns when a tick has something to do if nothing else happens; infinity if never."""
        return self._scheduler.next_deadline()

    def deliver(self, message: messages.ToLanguage) -> None:
        """Takes a message of the encoder. Late, repeated and unknown ones are counted and dropped."""
        self._inbox.deliver(message)

    def tick(self) -> None:
        """Takes all steps that are possible now: ends what is overdue, copies, lends blocks, opens."""
        self._scheduler.tick()

    def encoder_up(self, epoch: int) -> None:
        """Records that the encoder process of this epoch is ready. Raises Misuse while another was not reaped."""
        ledger = self._ledger
        if ledger.is_up and epoch == ledger.epoch:
            return
        if ledger.is_up or epoch <= ledger.epoch:
            state = "up" if ledger.is_up else "down"
            raise Misuse(f"encoder {epoch} cannot follow {ledger.epoch}, which is {state}")
        ledger.epoch = epoch
        ledger.is_up = True

    def encoder_down(self, epoch: int) -> None:
        """Records that the encoder process of this epoch was reaped, and so writes no more."""
        ledger = self._ledger
        if not ledger.is_up or epoch != ledger.epoch:
            return
        ledger.is_up = False
        ledger.kill_wanted = None
        for session in list(ledger.live.values()):
            if session.state is TransferState.DRAINING:
                ledger.release(session)
            else:
                session.is_abandoned = True
                ledger.fail(session, TransferResult.LOST, "the encoder process ended", is_told=False)
        ledger.outbox.clear()
