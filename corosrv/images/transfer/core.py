"""Carries items from an encoder to its clients, without any I/O: the inputs and outputs of the transfers of one pool.

Inputs are `submit`, `cancel`, `deliver`, `encoder_up`, `encoder_down`, `set_time` and `tick`; outputs are the outbox,
the trace, `kill_wanted`, and what `poll`, `result` and `stats` say. `TransferInbox` decides what a message of the
encoder means.
"""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.base.errors import EncoderBusy, Misuse
from corosrv.images.transfer.ledger import TransferLedger
from corosrv.images.transfer.messages import (
    BlocksFilled,
    EncodeFailed,
    Geometry,
    ImagePixels,
    ToEncoder,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.images.transfer.scheduler import RowStore, TransferScheduler
from corosrv.images.transfer.session import ENDED_FOR_CLIENT, Poll, TransferResult, TransferSession, TransferState
from corosrv.images.transfer.stats import IgnoredReason, Trace, TransferLimits, TransferStats


class TransferInbox:
    """Takes the messages of the encoder. They move sessions on; rows are copied and blocks lent by a tick alone."""

    def __init__(self, ledger: TransferLedger) -> None:
        self._ledger = ledger

    def deliver(self, message: ToLanguage) -> None:
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
            case TransferMeta():
                self._describe(session, message)
            case BlocksFilled():
                self._fill(session, message)
            case EncodeFailed():
                session.is_abandoned = True
                reason = f"the encoder failed: {message.text}"
                self._ledger.fail(session, TransferResult.ENCODER, reason, is_told=False)
            case TransferAborted():
                session.is_abandoned = True
                self._ledger.fail_for_violation(session, "an end that nobody asked for")

    def _end_draining(self, session: TransferSession, message: ToLanguage) -> None:
        is_current_fill = isinstance(message, BlocksFilled) and message.gen == session.gen
        if is_current_fill or isinstance(message, (TransferAborted, EncodeFailed)):
            self._ledger.release(session)
        else:
            self._ignore(IgnoredReason.LATE)

    def _describe(self, session: TransferSession, message: TransferMeta) -> None:
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

    def _fill(self, session: TransferSession, message: BlocksFilled) -> None:
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
    meta: TransferMeta | None


class TransferCore:
    """Runs the transfers of one pool. One greenlet at a time may call it; nothing waits."""

    def __init__(self, geometry: Geometry, limits: TransferLimits, store: RowStore) -> None:
        self._ledger = TransferLedger(geometry, limits)
        self._inbox = TransferInbox(self._ledger)
        self._scheduler = TransferScheduler(self._ledger, store)

    # For clients.

    def submit(self, image: ImagePixels, deadline: float | None = None) -> int:
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
    def outbox(self) -> list[ToEncoder]:
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

    def deliver(self, message: ToLanguage) -> None:
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
