"""Parts of a core that each break one rule, to see that the tests notice.

The two schedulers at the top keep what others have had: the unguarded logic, and its mending by block numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace

from corosrv.images.transfer.core import TransferCore, TransferInbox, TransferScheduler
from corosrv.images.transfer.ledger import TransferLedger
from corosrv.images.transfer.messages import BlocksFilled, CancelTransfer, GrantBlocks, TransferAborted
from corosrv.images.transfer.session import BlockAllocator, Poll, TransferResult, TransferSession, TransferState
from corosrv.images.transfer.stats import IgnoredReason, TraceKind

BROKEN: list[tuple[type, str]] = []  # with the rule that each of them breaks


def breaks(rule: str):
    """Registers a part, and the rule that rejects it when no other is checked."""

    def register(part_class: type) -> type:
        BROKEN.append((part_class, rule))
        return part_class

    return register


@breaks("C1")
class UnguardedScheduler(TransferScheduler):
    """Decides by the state as a poll shows it, and so resumes again in every loop while the encoder writes."""

    def tick(self) -> None:
        ledger = self._ledger
        for session in list(ledger.live.values()):
            if session.state is TransferState.FILLING and session.gen > 1:
                ledger._trace(TraceKind.COPY, session)
                ledger._free(session)
                session.filled = session.done = session.gen
                session.state = TransferState.NEED
                ledger.need_blocks[session.rid] = session
        super().tick()


@breaks("L1")
class TupleGuardedScheduler(TransferScheduler):
    """Skips a round whose block numbers equal those of the last resume, taken from the allocation just made."""

    def _process(self, session: TransferSession) -> None:
        is_last = session.received + session.n_filled == session.total
        if is_last or self.last_resumed.get(session.rid) != session.allocation.blocks:
            super()._process(session)

    def _lend_blocks(self) -> None:
        waiting = list(self._ledger.need_blocks.values())
        super()._lend_blocks()
        for session in waiting:
            if session.allocation is not None and session.gen > 1:
                self.last_resumed[session.rid] = session.allocation.blocks

    @property
    def last_resumed(self) -> dict[int, tuple[int, ...]]:
        return self.__dict__.setdefault("_last_resumed", {})


# Blocks.


@breaks("A1")
class LosesBlocks(TransferLedger):
    def _free(self, session) -> None:
        super()._free(session)
        self.allocator._free.pop()


@breaks("A2")
class LendsOneBlockTwice(TransferLedger):
    def grant(self, session, n_wanted) -> None:
        super().grant(session, n_wanted)
        self.allocator._free.append(session.allocation.blocks[0])


@breaks("A3")
class FreesTwice(TransferLedger):
    def _free(self, session) -> None:
        allocation = session.allocation
        self.allocator._is_strict = False
        super()._free(session)
        session.allocation = allocation
        super()._free(session)


@breaks("A4")
class FreesOnCancel(TransferLedger):
    def fail(self, session, result, reason, *, is_told=True) -> None:
        session.is_abandoned = True
        super().fail(session, result, reason, is_told=is_told)


@breaks("A4")
class ReclaimsByTimer(TransferLedger):
    def want_kill(self, session) -> None:
        self.release(session)


@breaks("A5")
class LeaksOnCrash(TransferCore):
    def encoder_down(self, epoch) -> None:
        ledger = self._ledger
        ledger.is_up = False
        for session in list(ledger.live.values()):
            if session.state is not TransferState.DRAINING:
                ledger.fail(session, TransferResult.LOST, "the encoder process ended", is_told=False)


@breaks("A5")
class ForgetsMemory(TransferLedger):
    def _end_for_client(self, session, result, reason) -> None:
        n_bytes = session.reserved
        super()._end_for_client(session, result, reason)
        self.staging_bytes += n_bytes


@breaks("D2")
class HidesQuarantine(BlockAllocator):
    def quarantine(self, allocation) -> None:
        pass


# Rounds.


@breaks("C1")
class ChecksNoGeneration(TransferInbox):
    def _fill(self, session, message) -> None:
        if session.state is TransferState.FILLING:
            session.fill(message)
            self._ledger.mark_ready(session)


@breaks("C1")
class CopiesInEachTick(TransferScheduler):
    def tick(self) -> None:
        super().tick()
        for session in self._ledger.live.values():
            if session.state is TransferState.FILLING and session.done:
                self._ledger._trace(TraceKind.COPY, session)


@breaks("C2")
class FreesBeforeCopying(TransferLedger):
    def begin_copy(self, session) -> memoryview:
        self._trace(TraceKind.FREE, session)
        return super().begin_copy(session)


@breaks("G1")
class RepeatsGenerations(TransferLedger):
    def grant(self, session, n_wanted) -> None:
        session.gen = session.done = session.filled = 0
        super().grant(session, n_wanted)


@breaks("G2")
class SkipsCopies(TransferScheduler):
    """Takes a round as copied that it has never read."""

    def _copy(self, session) -> None:
        pass


@breaks("G3")
class SendsWantedCapacity(TransferLedger):
    """Tells the encoder how many rows are wanted, where it has to know how many fit."""

    def _send(self, session, kind, message) -> None:
        if isinstance(message, GrantBlocks) and session.total:
            message = GrantBlocks(
                message.epoch, message.tid, message.gen, message.offset, message.blocks, session.total - message.offset
            )
        super()._send(session, kind, message)


@breaks("G3")
class LendsWithoutBound(TransferLedger):
    def grant(self, session, n_wanted) -> None:
        super().grant(session, 1000)


@breaks("G6")
class HoldsAndAllocates(TransferLedger):
    """Asks for the next blocks before it gives back those it has."""

    def _free(self, session) -> None:
        if session.state is TransferState.READY and session.received + session.n_filled < session.total:
            session.allocation_before = session.allocation
        else:
            super()._free(session)

    def grant(self, session, n_wanted) -> None:
        super().grant(session, n_wanted)
        if before := session.__dict__.pop("allocation_before", None):
            self.allocator.free(before)


@breaks("rows")
class CopiesToTheStart(TransferLedger):
    def begin_copy(self, session) -> memoryview:
        n_bytes = len(super().begin_copy(session))
        return memoryview(session.rows)[:n_bytes]


@breaks("X2")
class FinishesEarly(TransferLedger):
    """Takes the first round for the whole item."""

    def wait_for_room(self, session) -> None:
        if session.done:
            self.finish(session)
        else:
            super().wait_for_room(session)


# Lines.


@breaks("L1")
class LosesWakeUp(TransferScheduler):
    """Forgets that a transfer waits if no block is free in that moment."""

    def _lend_blocks(self) -> None:
        super()._lend_blocks()
        self._ledger.need_blocks.clear()


@breaks("L1")
class WaitsForAllBlocks(TransferScheduler):
    def _lend_blocks(self) -> None:
        for session in list(self._ledger.need_blocks.values())[:1]:
            if self._ledger.allocator.n_free * self._ledger.geometry.block_rows >= session.total - session.received:
                super()._lend_blocks()


@breaks("L1")
class HoldsAndWaits(TransferScheduler):
    """Does not copy a round while no other block is free for the next."""

    def _process(self, session) -> None:
        if self._ledger.allocator.n_free or session.received + session.n_filled == session.total:
            super()._process(session)


@breaks("L1")
class LosesQueueOnCrash(TransferCore):
    def encoder_down(self, epoch) -> None:
        super().encoder_down(epoch)
        self._ledger.queued.clear()


@breaks("F1")
class LendsToNewestFirst(TransferScheduler):
    def _lend_blocks(self) -> None:
        self._ledger.need_blocks = dict(reversed(self._ledger.need_blocks.items()))
        super()._lend_blocks()


@breaks("bounds")
class ExceedsMemory(TransferScheduler):
    def _reserve_memory(self) -> None:
        for session in list(self._ledger.need_memory.values()):
            self._ledger.reserve(session, session.total * self._ledger.geometry.row_bytes)
        self._ledger.need_blocks.update(self._ledger.need_memory)
        self._ledger.need_memory.clear()


@breaks("bounds")
class OpensTooMany(TransferScheduler):
    def _open_queued(self) -> None:
        limits = self._ledger.limits
        self._ledger.limits = replace(limits, max_active=99)
        super()._open_queued()
        self._ledger.limits = limits


# Clients.


@breaks("P1")
class ShowsDrainingAsWaiting(TransferCore):
    def poll(self, rid):
        session = self._session(rid)
        return Poll.WAITING if session.state is TransferState.DRAINING else session.poll


@breaks("P1")
class RevivesCancelled(TransferInbox):
    """Gives a transfer that was cancelled a second life when its rows arrive."""

    def _end_draining(self, session, message) -> None:
        if isinstance(message, BlocksFilled):
            session.state = TransferState.FILLING
            self.deliver(message)
        else:
            super()._end_draining(session, message)


@breaks("P2")
class TicksWhenPolled(TransferCore):
    def poll(self, rid):
        self.tick()
        return super().poll(rid)


@breaks("T1")
class RepeatsCancels(TransferScheduler):
    def tick(self) -> None:
        super().tick()
        for session in self._ledger.live.values():
            if session.state is TransferState.DRAINING:
                message = CancelTransfer(self._ledger.epoch, session.tid)
                self._ledger._send(session, TraceKind.CANCEL, message)


@breaks("T2")
class CountsTimeFromSubmission(TransferSession):
    def enter(self, state, now) -> None:
        changed_at = self.changed_at
        super().enter(state, now)
        self.changed_at = changed_at


@breaks("T2")
class GivesNoReason(TransferLedger):
    def fail(self, session, result, reason, *, is_told=True) -> None:
        super().fail(session, result, "", is_told=is_told)


@breaks("T2")
class FailsOnRepetition(TransferInbox):
    """Takes a message that comes twice for a violation."""

    def deliver(self, message) -> None:
        n_repeated = self._ledger.counters.ignored[IgnoredReason.DUPLICATE]
        super().deliver(message)
        if self._ledger.counters.ignored[IgnoredReason.DUPLICATE] > n_repeated:
            self._ledger.fail_for_violation(self._ledger.live[message.tid], "a repetition")


# Encoder processes.


@breaks("K1")
class KillsInEachTick(TransferScheduler):
    def _deadline(self, session):
        if session.state is TransferState.DRAINING:
            return session.changed_at + self._ledger.limits.drain_timeout, "draining"
        return super()._deadline(session)


@breaks("K1")
class KillsAtOnce(TransferLedger):
    def fail(self, session, result, reason, *, is_told=True) -> None:
        super().fail(session, result, reason, is_told=is_told)
        if session.state is TransferState.DRAINING and self.kill_wanted is None:
            self.want_kill(session)


@breaks("K1")
class NeverKills(TransferScheduler):
    def _deadline(self, session):
        return (math.inf, "") if session.state is TransferState.DRAINING else super()._deadline(session)


@breaks("X1")
class ChecksNoEpoch(TransferInbox):
    def deliver(self, message) -> None:
        if self._ledger.is_up and message.epoch != self._ledger.epoch:
            values = [getattr(message, name) for name in message.__struct_fields__[1:]]
            message = type(message)(self._ledger.epoch, *values)
        super().deliver(message)


@breaks("X2")
class ReusesTids(TransferCore):
    def encoder_up(self, epoch) -> None:
        super().encoder_up(epoch)
        self._ledger.last_tid = 0


@breaks("X2")
class CancelsWhatHasEnded(TransferInbox):
    def deliver(self, message) -> None:
        session = self._ledger.live.get(getattr(message, "tid", 0))
        super().deliver(message)
        if isinstance(message, TransferAborted) and session is not None:
            self._ledger._send(session, TraceKind.CANCEL, CancelTransfer(self._ledger.epoch, session.tid))
