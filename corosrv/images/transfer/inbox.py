"""Decides what a message of the encoder means for its transfer."""

from __future__ import annotations

from corosrv.images.transfer.ledger import TransferLedger
from corosrv.images.transfer.messages import BlocksFilled, EncodeFailed, ToLanguage, TransferAborted, TransferMeta
from corosrv.images.transfer.session import TransferSession
from corosrv.images.transfer.states import TransferResult, TransferState
from corosrv.images.transfer.stats import IgnoredReason


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
