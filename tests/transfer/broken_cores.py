"""Cores that each break one rule, to see that the tests notice. The first two are bugs that others have had."""

from __future__ import annotations

from corosrv.transfer.blocks import BlockAllocator
from corosrv.transfer.core import TransferCore
from corosrv.transfer.messages import CloseTransfer
from corosrv.transfer.session import TransferSession
from corosrv.transfer.states import TransferState
from corosrv.transfer.stats import IgnoredReason
from corosrv.transfer.trace import TraceKind


class UnguardedCore(TransferCore):
    """Decides by the state as a poll shows it, and so resumes again in every loop while the encoder writes."""

    def tick(self) -> None:
        for session in list(self._live.values()):
            if session.state is TransferState.FILLING and session.gen > 1:
                self._trace(TraceKind.COPY, session)
                self._free(session)
                session.filled = session.done = session.gen
                session.state = TransferState.NEED
                self._need_blocks[session.rid] = session
        super().tick()


class TupleGuardedCore(TransferCore):
    """Skips a round whose block numbers equal those of the last resume, taken from the allocation just made."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.last_resumed: dict[int, tuple[int, ...]] = {}

    def _process(self, session: TransferSession) -> None:
        assert session.allocation is not None
        is_last = session.received + session.n_filled == session.total
        if not is_last and self.last_resumed.get(session.rid) == session.allocation.blocks:
            return
        super()._process(session)

    def _grant(self, session: TransferSession, n_wanted: int) -> None:
        super()._grant(session, n_wanted)
        assert session.allocation is not None
        if session.gen > 1:
            self.last_resumed[session.rid] = session.allocation.blocks


class FreesOnCancel(TransferCore):
    def _fail(self, session, result, reason, **how) -> None:
        super()._fail(session, result, reason, **{**how, "is_quiet": True})


class ReclaimsByTimer(TransferCore):
    def _want_kill(self, session) -> None:
        self._drained(session)


class ChecksNoGeneration(TransferCore):
    def _deliver_filled(self, session, message) -> None:
        if session.state is TransferState.FILLING:
            session.fill(message)
            self._enter(session, TransferState.READY)
            self._ready[session.rid] = session


class HoldsAndWaits(TransferCore):
    """Asks for the next blocks before it gives back those it has."""

    def _process(self, session) -> None:
        if self._allocator.n_free or session.received + session.n_filled == session.total:
            super()._process(session)


class WaitsForAllBlocks(TransferCore):
    def _grant_blocks(self) -> None:
        for session in list(self._need_blocks.values())[:1]:
            if self._allocator.n_free * self._geometry.block_rows >= session.total - session.received:
                super()._grant_blocks()


class LosesWakeUp(TransferCore):
    """Forgets that a transfer waits if no block is free in that moment."""

    def _grant_blocks(self) -> None:
        super()._grant_blocks()
        self._need_blocks.clear()


class LendsToNewestFirst(TransferCore):
    def _grant_blocks(self) -> None:
        self._need_blocks = dict(reversed(self._need_blocks.items()))
        super()._grant_blocks()


class ChecksNoEpoch(TransferCore):
    def deliver(self, message) -> None:
        if self._is_up and message.epoch != self._epoch:
            message = type(message)(self._epoch, *[getattr(message, f) for f in message.__struct_fields__[1:]])
        super().deliver(message)


class ReusesTids(TransferCore):
    def encoder_up(self, epoch) -> None:
        super().encoder_up(epoch)
        self._last_tid = 0


class RepeatsGenerations(TransferCore):
    def _grant(self, session, n_wanted) -> None:
        session.gen = session.done = session.filled = 0
        super()._grant(session, n_wanted)


class FreesTwice(TransferCore):
    def _free(self, session) -> None:
        allocation = session.allocation
        super()._free(session)
        session.allocation = allocation
        super()._free(session)


class FreesBeforeCopying(TransferCore):
    def _copy(self, session) -> None:
        self._trace(TraceKind.FREE, session)
        super()._copy(session)


class CopiesInEachTick(TransferCore):
    def tick(self) -> None:
        super().tick()
        for session in self._live.values():
            if session.state is TransferState.FILLING and session.done:
                self._trace(TraceKind.COPY, session)


class LeaksOnCrash(TransferCore):
    def encoder_down(self, epoch) -> None:
        self._is_up = False
        for session in list(self._live.values()):
            if session.state is not TransferState.DRAINING:
                self._fail(session, "lost", "the encoder process ended", is_told=False)


class LosesQueueOnCrash(TransferCore):
    def encoder_down(self, epoch) -> None:
        super().encoder_down(epoch)
        self._queued.clear()


class ForgetsStaging(TransferCore):
    def _ended_for_client(self, session, result, reason) -> None:
        reserved = session.reserved
        super()._ended_for_client(session, result, reason)
        self._staging_bytes += reserved


class ExceedsStaging(TransferCore):
    def _reserve_memory(self) -> None:
        for session in list(self._need_memory.values()):
            self._reserve(session, session.total * self._geometry.row_bytes)
        self._need_blocks.update(self._need_memory)
        self._need_memory.clear()


class OpensTooMany(TransferCore):
    def _open_queued(self) -> None:
        for _ in range(2):
            super()._open_queued()
            if self._queued and self._is_up:
                self._limits = type(self._limits)(**{**fields_of(self._limits), "max_active": 99})


class CountsPlannedRows(TransferCore):
    """Takes the capacity for the number of rows that were written."""

    def _deliver_filled(self, session, message) -> None:
        super()._deliver_filled(session, message)
        if session.state is TransferState.READY:
            session.n_filled = session.capacity


class FinishesEarly(TransferCore):
    """Takes the first round for the whole item."""

    def _wait_for_room(self, session) -> None:
        if session.done:
            self._finish(session)
        else:
            super()._wait_for_room(session)


class ClosesWithoutMeta(TransferCore):
    def _enter(self, session, state) -> None:
        if session.state is TransferState.READY and state is TransferState.OPENING:
            self._send(session, TraceKind.CLOSE, CloseTransfer(self._epoch, session.tid))
            return
        super()._enter(session, state)


class ProcessesWhenDraining(TransferCore):
    """Gives a transfer that was cancelled a second life when its rows arrive."""

    def _deliver_draining(self, session, message) -> None:
        session.state = TransferState.FILLING
        self.deliver(message)


class ShowsStaleSuccess(TransferCore):
    """Says that a transfer waits while its blocks drain."""

    def poll(self, rid):
        session = self._session(rid)
        return 2 if session.state is TransferState.DRAINING else session.poll


class LendsOneBlockTwice(TransferCore):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._allocator = TwiceLendingAllocator(self._geometry.n_blocks)


class TwiceLendingAllocator(BlockAllocator):
    def allocate(self, tid, gen, n_wanted):
        allocation = super().allocate(tid, gen, n_wanted)
        self._free.append(allocation.blocks[0])
        return allocation


class DropsMetaWhileFilling(TransferCore):
    def _deliver_meta(self, session, message) -> None:
        if session.allocation is None:
            super()._deliver_meta(session, message)
        else:
            self._ignore(IgnoredReason.DUPLICATE)


def fields_of(limits) -> dict:
    return {name: getattr(limits, name) for name in type(limits).__dataclass_fields__}


BROKEN = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, TransferCore) and kind is not TransferCore
]
