"""A pool in plain memory and an encoder that obeys the protocol, driven step by step beside a core."""

from __future__ import annotations

import random
from collections.abc import Callable

from corosrv.errors import ProtocolError, RowsNotFinite
from corosrv.transfer.blocks import Allocation
from corosrv.transfer.core import TransferCore
from corosrv.transfer.limits import TransferLimits
from corosrv.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    Geometry,
    GrantBlocks,
    OpenTransfer,
    RowSegment,
    TokenIds,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.transfer.states import ACTIVE, Poll, TransferState
from corosrv.transfer.stats import IgnoredReason
from corosrv.transfer.trace import TraceKind

NAN = b"\x00\x00\xc0\x7f"


def row(tid: int, index: int) -> bytes:
    """Returns the one number that is row `index` of the item of a transfer, in four bytes that are no NaN."""
    return bytes((tid % 251, index % 256, index // 256, 7))


class PlainPool:
    """Holds blocks and headers as the shared pool does; what is read must be what was written for this grant."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.rows: dict[tuple[int, int], bytes] = {}
        self.headers: dict[int, tuple[int, ...]] = {}

    def write(self, epoch: int, grant: GrantBlocks, n: int, make_row: Callable[[int, int], bytes] = row) -> None:
        for start in range(0, n, self.geometry.block_rows):
            block = grant.blocks[start // self.geometry.block_rows]
            n_here = min(self.geometry.block_rows, n - start)
            for index in range(n_here):
                self.rows[block, index] = make_row(grant.tid, grant.offset + start + index)
            self.headers[block] = (epoch, grant.tid, grant.gen, grant.offset + start, n_here)

    def copy_rows(self, epoch: int, allocation: Allocation, offset: int, n: int, into: memoryview) -> None:
        for start in range(0, n, self.geometry.block_rows):
            block = allocation.blocks[start // self.geometry.block_rows]
            n_here = min(self.geometry.block_rows, n - start)
            if self.headers.get(block) != (epoch, allocation.tid, allocation.gen, offset + start, n_here):
                raise ProtocolError(f"block {block} is headed {self.headers.get(block)}")
            for index in range(n_here):
                if self.rows[block, index] == NAN:
                    raise RowsNotFinite("a row is not finite")
                into[4 * (start + index) : 4 * (start + index) + 4] = self.rows[block, index]


class HonestEncoder:
    """Answers as the encoder process does. `totals`: rows of the items, by their tids."""

    def __init__(self, pool: PlainPool, epoch: int, n_rows: Callable[[int], int]) -> None:
        self.pool = pool
        self.epoch = epoch
        self.n_rows = n_rows
        self.encoding: dict[int, list[GrantBlocks]] = {}
        self.grants: list[GrantBlocks] = []  # of encoded items, not written yet
        self.holding: dict[int, int] = {}  # the last generation, by tid
        self.floor = 0

    def receive(self, message: object) -> list[ToLanguage]:
        """Takes one message, and returns what is answered at once."""
        match message:
            case OpenTransfer(tid=tid) if tid > self.floor:
                self.floor = tid
                self.encoding[tid] = []
            case GrantBlocks(tid=tid):
                if tid in self.encoding:
                    self.encoding[tid] += [message] if message.gen == 1 and not self.encoding[tid] else []
                elif self.holding.get(tid) == message.gen - 1:
                    self.holding[tid] = message.gen
                    self.grants.append(message)
            case CancelTransfer(tid=tid):
                is_live = self.encoding.pop(tid, None) is not None
                is_live |= self.holding.pop(tid, None) is not None
                self.grants = [grant for grant in self.grants if grant.tid != tid]
                return [TransferAborted(self.epoch, tid)] if is_live else []
            case CloseTransfer(tid=tid):
                self.holding.pop(tid, None)
        return []

    def encode(self, tid: int) -> list[ToLanguage]:
        grants = self.encoding.pop(tid)
        self.holding[tid] = len(grants)
        self.grants += grants
        return [meta(self.epoch, tid, self.n_rows(tid))]

    def fail(self, tid: int) -> list[ToLanguage]:
        self.encoding.pop(tid)
        return [EncodeFailed(self.epoch, tid, "bad", "no image")]

    def write(self) -> list[ToLanguage]:
        """Writes the rows of the oldest grant."""
        grant = self.grants.pop(0)
        total = self.n_rows(grant.tid)
        n = min(total - grant.offset, grant.capacity)
        self.pool.write(self.epoch, grant, n)
        return [BlocksFilled(self.epoch, grant.tid, grant.gen, grant.offset, n, total)]


def meta(epoch: int, tid: int, total: int) -> TransferMeta:
    return TransferMeta(epoch, tid, total, 1, (RowSegment(total),))


class World:
    """A core, its pool and its encoder. Each method is one step; `check` looks at all invariants."""

    def __init__(
        self,
        *,
        n_blocks: int = 4,
        block_rows: int = 2,
        n_rows: Callable[[int], int] = lambda tid: 5,
        core_class: type[TransferCore] = TransferCore,
        is_checked: bool = True,
        **limits: float,
    ) -> None:
        self.is_checked = is_checked
        self.geometry = Geometry(n_blocks, block_rows, 4, 4096)
        self.limits = TransferLimits(**{"max_active": 3, "max_rows": 4096, **limits})
        self.pool = PlainPool(self.geometry)
        self.core = core_class(self.geometry, self.limits, self.pool)
        self.n_rows = n_rows
        self.now = 0.0
        self.epoch = 0
        self.encoder: HonestEncoder | None = None
        self.to_encoder: list[object] = []
        self.to_language: list[ToLanguage] = []
        self.n_seen = 0
        self.polls: dict[int, Poll] = {}
        self.rids: list[int] = []
        self.quiet: dict[tuple[int, int], int] = {}  # (tid, gen) to epoch
        self.granted: dict[tuple[int, int], tuple[int, ...]] = {}
        self.copied: set[tuple[int, int]] = set()
        self.freed: set[tuple[int, int]] = set()
        self.owner: dict[int, tuple[int, int]] = {}
        self.waits: dict[int, int] = {}  # grants to others since a quiet tick, by rid
        self.start()

    def start(self) -> None:
        self.epoch += 1
        self.encoder = HonestEncoder(self.pool, self.epoch, self.n_rows)
        self.to_encoder.clear()
        self.core.encoder_up(self.epoch)
        self.check()

    def crash(self) -> None:
        """Kills and reaps the encoder; what it sent before may still come."""
        self.encoder = None
        self.core.encoder_down(self.epoch)
        for key, blocks in self.granted.items():
            if blocks and any(self.owner.get(block) == key for block in blocks):
                self.quiet[key] = self.epoch
        self.check()

    def submit(self) -> int:
        rid = self.core.submit("table", TokenIds((1,)))
        self.rids.append(rid)
        self.check()
        return rid

    def cancel(self, rid: int) -> None:
        self.core.cancel(rid)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.core.set_time(self.now)
        self.check()

    def tick(self) -> None:
        """Ticks twice: the second time nothing must happen."""
        self.core.tick()
        self.check()
        self.send()
        if not self.is_checked:
            return
        n_events = self.core.trace.n_events
        self.core.tick()
        assert self.core.trace.n_events == n_events, "T1: a tick without news did something"
        self.check_nothing_left_undone()
        for rid in self.core._need_blocks:
            self.waits.setdefault(rid, 0)

    def send(self) -> None:
        self.to_encoder += self.core.outbox
        self.core.outbox.clear()

    def encoder_reads(self, index: int = 0) -> None:
        assert self.encoder is not None
        self.to_language += self.encoder.receive(self.to_encoder.pop(index))

    def deliver(self, message: ToLanguage) -> None:
        is_stale = message.epoch != self.epoch or self.encoder is None
        if not is_stale and not isinstance(message, TransferMeta):
            gen = message.gen if isinstance(message, BlocksFilled) else None
            for key in self.granted:
                if key[0] == message.tid and gen in (None, key[1]):
                    self.quiet[key] = self.epoch
        n_stale = self.core.stats().ignored.get(IgnoredReason.EPOCH, 0)
        self.core.deliver(message)
        if self.is_checked:
            n_new = self.core.stats().ignored.get(IgnoredReason.EPOCH, 0) - n_stale
            assert n_new == is_stale, "X1: a message of a reaped encoder was not dropped as such"
        self.check()

    def run_encoder(self) -> None:
        """Lets the encoder do all that it can, and delivers its answers."""
        self.send()
        while self.encoder and (self.to_encoder or self.encoder.encoding or self.encoder.grants):
            if self.to_encoder:
                self.encoder_reads()
            elif self.encoder.encoding:
                self.to_language += self.encoder.encode(next(iter(self.encoder.encoding)))
            else:
                self.to_language += self.encoder.write()
        while self.to_language:
            self.deliver(self.to_language.pop(0))
        self.send()

    def run(self, n_loops: int = 1000) -> None:
        """Goes on until every transfer has ended and the encoder has nothing more to say."""
        for _ in range(n_loops):
            self.tick()
            self.run_encoder()
            if all(self.core.result(rid) for rid in self.rids) and not self.core._live:
                return
        raise AssertionError("L1: a transfer does not end")

    def new_events(self) -> list:
        events = self.core.trace.events_after(self.n_seen)
        self.n_seen = self.core.trace.n_events
        return events

    # Invariants, by the ids of the protocol's rules.

    def check(self) -> None:
        if not self.is_checked:
            return
        for event in self.new_events():
            self.check_event(event)
        stats = self.core.stats()
        assert stats.n_free + stats.n_in_use + stats.n_quarantined == self.geometry.n_blocks, "A1"
        assert stats.n_free == self.geometry.n_blocks - len(self.owner), "A1: not the blocks that were freed"
        draining = [s for s in self.core._live.values() if s.state is TransferState.DRAINING]
        assert stats.n_quarantined == sum(len(s.allocation.blocks) for s in draining), "D2"
        assert 0 <= stats.staging_bytes <= self.limits.staging_budget, "the staging budget"
        assert stats.n_active <= self.limits.max_active, "the number of active transfers"
        for session in self.core._live.values():
            assert session.done <= session.filled <= session.gen <= session.done + 1, "C1"
        for rid in self.rids:
            self.check_poll(rid)

    def check_poll(self, rid: int) -> None:
        poll = self.core.poll(rid)
        before = self.polls.get(rid, Poll.BOOTSTRAPPING)
        assert poll is self.core.poll(rid), "P2"
        if before in (Poll.FAILED, Poll.SUCCESS):
            assert poll is before, "P1: an end is the end"
            return
        assert poll is Poll.FAILED or poll >= before, "P1"
        self.polls[rid] = poll
        outcome = self.core.result(rid)
        assert (outcome is not None) == (poll in (Poll.FAILED, Poll.SUCCESS))
        if outcome is not None and poll is Poll.SUCCESS:
            tid = self.core._sessions[rid].tid
            assert outcome.meta is not None
            assert bytes(outcome.rows or b"") == b"".join(row(tid, i) for i in range(self.n_rows(tid))), "rows"
        elif outcome is not None:
            assert outcome.reason, "T2"
            assert outcome.rows is None

    def check_event(self, event) -> None:
        key = (event.tid, event.gen)
        if event.kind is TraceKind.ALLOCATE:
            assert key not in self.granted, "G1: a generation came again"
            assert event.gen == 1 or (event.tid, event.gen - 1) in self.freed, "G2, G6"
            assert event.blocks, "G3"
            assert not any(block in self.owner for block in event.blocks), "A2"
            assert len(event.blocks) <= self.limits.max_blocks_per_round, "G3"
            self.granted[key] = event.blocks
            self.owner.update(dict.fromkeys(event.blocks, key))
            self.check_fairness(event.rid)
        elif event.kind is TraceKind.COPY:
            assert key not in self.copied, "C1: copied twice"
            assert key not in self.freed, "C2: copied after the free"
            self.copied.add(key)
        elif event.kind is TraceKind.FREE:
            assert key not in self.freed, "A3: freed twice"
            assert all(self.owner.get(block) == key for block in event.blocks), "A3: not its owner"
            assert key in self.quiet or self.encoder is None, "A4: freed before the writer was quiet"
            self.freed.add(key)
            for block in event.blocks:
                del self.owner[block]
        elif event.kind is TraceKind.END:
            self.waits.pop(event.rid, None)

    def check_fairness(self, rid: int) -> None:
        self.waits.pop(rid, None)
        for waiting in self.waits:
            self.waits[waiting] += 1
            assert self.waits[waiting] <= self.limits.max_active - 1, "F1"

    def check_nothing_left_undone(self) -> None:
        stats = self.core.stats()
        states = [session.state for session in self.core._live.values()]
        assert TransferState.READY not in states, "L1: rows were not copied"
        if self.core._need_blocks:
            assert stats.n_free == 0, "L1: blocks were not lent"
        needing = [s for s in self.core._live.values() if s.state is TransferState.NEED]
        assert {s.rid for s in needing} == {*self.core._need_blocks, *self.core._need_memory}, "L1: a lost waiter"
        if self.encoder is not None and stats.n_queued:
            assert stats.n_active == self.limits.max_active, "L1: a transfer was not opened"
        assert stats.n_active == sum(state in ACTIVE for state in states)

    def check_idle(self) -> None:
        """Checks that everything has come back."""
        stats = self.core.stats()
        assert (stats.n_in_use, stats.n_quarantined, stats.n_active, stats.staging_bytes) == (0, 0, 0, 0), "A5"
        assert stats.n_free == self.geometry.n_blocks, "A5"


class RandomRun:
    """Takes random steps in a world; with faults, all that may go wrong does."""

    def __init__(self, seed: int, *, has_faults: bool, core_class: type[TransferCore] = TransferCore) -> None:
        self.random = random.Random(seed)
        self.has_faults = has_faults
        pick = self.random.choice
        sizes = {tid: self.random.randint(1, 24) for tid in range(1, 200)}
        self.world = World(
            n_blocks=pick((1, 2, 3, 4, 8)),
            block_rows=pick((1, 2, 3)),
            n_rows=sizes.__getitem__,
            core_class=core_class,
            max_active=pick((1, 2, 3, 4)),
            max_blocks_per_round=pick((1, 2, 4)),
            prealloc_blocks=pick((0, 0, 1, 2)),
            staging_budget=pick((96, 200, 1 << 20)),
            max_rows=24,
            **({} if has_faults else {"open_timeout": 1e9, "round_timeout": 1e9, "deadline": 1e9}),
        )
        self.repeated: list[ToLanguage] = []

    def run(self, n_steps: int = 60) -> None:
        for _ in range(n_steps):
            self.step()
        self.finish()

    def step(self) -> None:
        world, roll = self.world, self.random.random()
        if roll < 0.12 and len(world.rids) < 8:
            world.submit()
        elif roll < 0.42:
            world.tick()
        elif roll < 0.60:
            if world.encoder and world.to_encoder:
                world.encoder_reads()
        elif roll < 0.78:
            self.encoder_works()
        elif roll < 0.93 or not self.has_faults:
            self.deliver()
        else:
            self.fault()

    def encoder_works(self) -> None:
        encoder = self.world.encoder
        if encoder is None:
            return
        if encoder.encoding and self.random.random() < 0.5:
            tid = self.random.choice(list(encoder.encoding))
            fails = self.has_faults and self.random.random() < 0.1
            self.world.to_language += encoder.fail(tid) if fails else encoder.encode(tid)
        elif encoder.grants:
            self.world.to_language += encoder.write()

    def deliver(self) -> None:
        world = self.world
        if not world.to_language:
            return
        index = self.random.randrange(len(world.to_language)) if self.random.random() < 0.3 else 0
        message = world.to_language.pop(index)
        self.repeated.append(message)
        world.deliver(message)

    def fault(self) -> None:
        world, kind = self.world, self.random.randrange(6)
        if kind == 0 and world.rids:
            world.cancel(self.random.choice(world.rids))
        elif kind == 1 and self.repeated:
            world.deliver(self.random.choice(self.repeated))
        elif kind == 2 and world.to_encoder:
            index = self.random.randrange(len(world.to_encoder))  # a message may come twice, never before itself
            world.to_encoder.insert(self.random.randint(index + 1, len(world.to_encoder)), world.to_encoder[index])
        elif kind == 3 and world.encoder:
            world.crash()
        elif kind == 4 and world.encoder is None:
            world.start()
        elif kind == 5:
            world.pass_time(self.random.choice((0.5, 4.0, 6.0, 11.0, 31.0)))

    def finish(self) -> None:
        """Lets everything end, and checks what must hold then."""
        world = self.world
        if world.encoder is None:
            world.start()
        world.run(200)
        world.check_idle()
        if not self.has_faults:
            assert all(poll is Poll.SUCCESS for poll in world.polls.values()), "without faults all succeed"
