"""The rules of transfers, by the ids that their specification gives them, checked while a core runs.

The checks see what a core says: its trace, its outbox, its counters and what its clients get. For C1 and L1 they look
at its lines as well.

    A1 free, used and quarantined blocks are all blocks     G3 a grant is as large as it can be, and says so
    A2 a block has one owner                                G6 who asks for blocks holds none
    A3 an allocation is freed once, whole                   K1 an encoder is killed once, and not too early
    A4 no block is free before its writer is quiet          L1 nothing that is possible is left undone
    A5 in the end everything is free                        P1 a poll moves forward only
    C1 a generation is copied once, after it was filled     P2 asking changes nothing
    C2 rows are copied before their blocks are freed        T1 a tick without news does nothing
    D2 blocks of ended transfers count as quarantined       T2 nothing fails without its cause
    F1 few others get blocks before who waits               X1 messages of a reaped encoder are dropped
    G1 generations count 1, 2, 3                            X2 ids increase; nothing is said after an end
    G2 a grant follows the copy of the one before
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from corosrv.images.transfer.messages import (
    BlocksFilled,
    CancelTransfer,
    CloseTransfer,
    EncodeFailed,
    GrantBlocks,
    OpenTransfer,
    ToLanguage,
    TransferAborted,
    TransferMeta,
)
from corosrv.images.transfer.session import Poll, TransferResult, TransferState
from corosrv.images.transfer.stats import IgnoredReason, TraceEvent, TraceKind
from tests.images.transfer.encoder import row

if TYPE_CHECKING:
    from tests.images.transfer.world import World

IDS = ("A1", "A2", "A3", "A4", "A5", "C1", "C2", "D2", "F1", "G1", "G2", "G3", "G6", "K1", "L1", "P1", "P2", "T1", "T2")
RULES = frozenset((*IDS, "X1", "X2", "rows", "bounds"))

ENDS = (Poll.FAILED, Poll.SUCCESS)

Round = tuple[int, int]  # tid and generation


class RuleBroken(AssertionError):
    """A core did what it must not. `rule` is the id of what it broke."""

    def __init__(self, rule: str, words: str) -> None:
        super().__init__(f"{rule}: {words}")
        self.rule = rule


class RuleChecker:
    """Watches the core of a world. `rules`: those that are checked."""

    def __init__(self, world: World, rules: frozenset[str] = RULES) -> None:
        self.world = world
        self.rules = rules
        self.n_seen = 0  # events of the trace
        self.polls: dict[int, Poll] = {}
        self.granted: dict[Round, tuple[int, ...]] = {}
        self.filled: set[Round] = set()  # reported by the encoder
        self.quiet: set[Round] = set()  # for which nothing more will be written
        self.copied: set[Round] = set()
        self.freed: set[Round] = set()
        self.owner: dict[int, Round] = {}
        self.received: dict[int, int] = defaultdict(int)  # rows, by tid
        self.n_filled: dict[Round, int] = {}
        self.waits: dict[int, int] = {}  # grants to others since a quiet tick, by rid
        self.last_tid = 0
        self.silent: set[int] = set()  # tids that the encoder was told the end of
        self.ended: dict[int, float] = {}  # when a transfer ended for its client, by tid
        self.killed: set[int] = set()  # epochs
        self.described: set[int] = set()  # tids
        self.progress: dict[int, float] = {}  # when something last happened to a transfer, by tid
        self.given_up: set[int] = set()  # tids of which the encoder said so
        self.tids: dict[int, int] = {}  # by rid

    def expect(self, rule: str, is_kept: bool, words: str, *values: object) -> None:
        """Raises RuleBroken unless a rule is kept or not checked. `values` fill the places in `words`."""
        if not is_kept and rule in self.rules:
            raise RuleBroken(rule, words.format(*values))

    # What the world does.

    def note_crash(self) -> None:
        self.quiet |= set(self.owner.values())

    def note_delivery(self, message: ToLanguage) -> None:
        """Records what a message of the encoder that is up promises."""
        tid = getattr(message, "tid", 0)
        if isinstance(message, TransferMeta):
            if tid not in self.described:
                self.progress[tid] = self.world.now
            self.described.add(tid)
        elif isinstance(message, BlocksFilled):
            if (tid, message.gen) not in self.filled:
                self.progress[tid] = self.world.now
            self.filled.add((tid, message.gen))
            self.quiet.add((tid, message.gen))
            self.n_filled[tid, message.gen] = message.n
        elif isinstance(message, (TransferAborted, EncodeFailed)):
            self.given_up.add(tid)
            self.quiet |= {key for key in self.granted if key[0] == tid}

    def check_delivery(self, is_stale: bool, n_stale_before: int, n_events_before: int) -> None:
        core = self.world.core
        n_new = core._ledger.counters.ignored[IgnoredReason.EPOCH] - n_stale_before
        self.expect("X1", n_new == is_stale, "a message of a reaped encoder was not dropped as such")
        self.expect("X1", not is_stale or core.trace.n_events == n_events_before, "a stale message did something")

    # After each step.

    def check(self) -> None:
        core = self.world.core
        events = core.trace.events_after(self.n_seen)
        self.n_seen = core.trace.n_events
        for event in events:
            self.check_event(event)
        self.check_messages()
        self.check_sums()
        for rid in [rid for rid in self.world.rids if self.polls.get(rid) not in ENDS]:
            self.check_client(rid)

    def check_sums(self) -> None:
        core, geometry, limits = self.world.core, self.world.geometry, self.world.limits
        stats = core.stats()
        n_lent = len(self.owner)
        n_draining = sum(tid in self.ended for tid, _ in self.owner.values())
        n_blocks = stats.n_free + stats.n_in_use + stats.n_quarantined
        self.expect("A1", n_blocks == geometry.n_blocks, "{} blocks of {}", n_blocks, geometry.n_blocks)
        self.expect("A1", stats.n_free == geometry.n_blocks - n_lent, "{} free, with {} lent", stats.n_free, n_lent)
        self.expect("D2", stats.n_quarantined == n_draining, "{}, where {} drain", stats.n_quarantined, n_draining)
        self.expect("bounds", 0 <= stats.staging_bytes <= limits.staging_budget, "the staging budget")
        self.expect("bounds", stats.n_active <= limits.max_active, "the number of active transfers")
        for session in core._ledger.live.values():
            in_order = session.done <= session.filled <= session.gen <= session.done + 1
            self.expect("C1", in_order, "{}, {}, {}", session.done, session.filled, session.gen)

    def check_messages(self) -> None:
        """Looks at the messages to the encoder that were not looked at yet."""
        for message in self.world.take_messages():
            tid = getattr(message, "tid", 0)
            match message:
                case OpenTransfer():
                    self.expect("X2", tid > self.last_tid, "tid {} after {}", tid, self.last_tid)
                    self.last_tid = max(tid, self.last_tid)
                case GrantBlocks():
                    self.expect("X2", tid not in self.silent, "a grant after the end")
                    self.check_grant(message)
                case CloseTransfer():
                    self.expect("X2", tid not in self.silent, "a second end")
                    total = self.world.n_rows(tid)
                    self.expect("X2", self.received[tid] == total, "closed at {} of {} rows", self.received[tid], total)
                    self.silent.add(tid)
                case CancelTransfer():
                    self.expect("X2", tid not in self.silent, "a second end")
                    self.silent.add(tid)

    def check_grant(self, message: GrantBlocks) -> None:
        blocks = self.granted.get((message.tid, message.gen))
        self.expect("G3", message.blocks == blocks, "other blocks than were lent")
        capacity = len(message.blocks) * self.world.geometry.block_rows
        self.expect("G3", message.capacity == capacity, "capacity {}, not {}", message.capacity, capacity)

    # Events of the trace.

    def check_event(self, event: TraceEvent) -> None:
        self.tids[event.rid] = event.tid
        if event.kind in (TraceKind.OPEN, TraceKind.ALLOCATE, TraceKind.COPY):
            self.progress[event.tid] = self.world.now
        match event.kind:
            case TraceKind.ALLOCATE:
                self.check_allocation(event)
            case TraceKind.COPY:
                self.check_copy(event)
            case TraceKind.FREE:
                self.check_free(event)
            case TraceKind.END:
                self.waits.pop(event.rid, None)
                self.ended[event.tid] = self.world.now
            case TraceKind.KILL:
                self.check_kill(event)

    def check_allocation(self, event: TraceEvent) -> None:
        key, before = (event.tid, event.gen), (event.tid, event.gen - 1)
        n_rounds = sum(tid == event.tid for tid, _ in self.granted)
        self.expect("G1", event.gen == n_rounds + 1, "generation {} after {}", event.gen, n_rounds)
        is_next = event.gen == 1 or (before in self.filled and before in self.copied)
        self.expect("G2", is_next, "the round before was not copied")
        self.expect("G6", event.tid not in {tid for tid, _ in self.owner.values()}, "it holds blocks already")
        self.expect("A2", not any(block in self.owner for block in event.blocks), "a block has an owner already")
        self.expect("A2", len(set(event.blocks)) == len(event.blocks), "a block comes twice")
        self.check_size(event)
        self.granted[key] = event.blocks
        self.owner.update(dict.fromkeys(event.blocks, key))
        self.waits.pop(event.rid, None)
        for waiting in self.waits:
            self.waits[waiting] += 1
            self.expect("F1", self.waits[waiting] <= self.world.limits.max_active - 1, "others were first too often")

    def check_size(self, event: TraceEvent) -> None:
        limits, geometry = self.world.limits, self.world.geometry
        n_free = geometry.n_blocks - len(self.owner)
        n_needed = -(-(self.world.n_rows(event.tid) - self.received[event.tid]) // geometry.block_rows)
        n_due = min(n_free, limits.max_blocks_per_round, n_needed)
        self.expect("G3", len(event.blocks) == n_due >= 1, "{} blocks, where {} were due", len(event.blocks), n_due)

    def check_copy(self, event: TraceEvent) -> None:
        key = (event.tid, event.gen)
        self.expect("C1", key in self.filled, "copied before it was filled")
        self.expect("C1", key not in self.copied, "copied twice")
        self.expect("C2", key not in self.freed, "copied after it was freed")
        self.copied.add(key)
        self.received[event.tid] += self.n_filled.get(key, 0)

    def check_free(self, event: TraceEvent) -> None:
        key = (event.tid, event.gen)
        is_owner = all(self.owner.get(block) == key for block in event.blocks)
        self.expect("A3", key not in self.freed, "freed twice")
        self.expect("A3", is_owner and event.blocks == self.granted.get(key), "not what its owner was lent")
        self.expect("A4", key in self.quiet, "freed before the writer was quiet")
        is_kept = key in self.copied or event.tid in self.ended
        self.expect("C2", is_kept, "freed before it was copied, in a transfer that goes on")
        self.freed.add(key)
        for block in event.blocks:
            self.owner.pop(block, None)

    def check_kill(self, event: TraceEvent) -> None:
        self.expect("K1", event.epoch not in self.killed, "a second kill")
        drains_since = min((self.ended.get(tid, self.world.now) for tid, _ in self.owner.values()), default=0.0)
        is_overdue = bool(self.owner) and self.world.now - drains_since >= self.world.limits.drain_timeout
        self.expect("K1", is_overdue, "a kill before the time")
        self.killed.add(event.epoch)

    # Clients.

    def check_client(self, rid: int) -> None:
        core = self.world.core
        n_events, n_messages = core.trace.n_events, len(core.outbox)
        poll, outcome = core.poll(rid), core.result(rid)
        self.expect("P2", poll is core.poll(rid), "another answer to the same question")
        self.expect("P2", (core.trace.n_events, len(core.outbox)) == (n_events, n_messages), "asking did something")
        before = self.polls.get(rid, Poll.BOOTSTRAPPING)
        self.expect("P1", poll is Poll.FAILED or poll >= before, "{!r} after {!r}", poll, before)
        self.polls[rid] = poll
        has_ended = poll in ENDS
        self.expect("P1", (outcome is not None) == has_ended, "{!r} with {}", poll, outcome)
        if outcome is not None and poll is Poll.SUCCESS:
            self.check_rows(rid, outcome)
        elif outcome is not None:
            self.check_failure(rid, outcome)

    def check_rows(self, rid: int, outcome) -> None:
        tid = self.tids[rid]
        rows = b"".join(row(tid, i) for i in range(self.world.n_rows(tid)))
        self.expect("rows", outcome.meta is not None and bytes(outcome.rows or b"") == rows, "other rows than written")

    def check_failure(self, rid: int, outcome) -> None:
        self.expect("T2", bool(outcome.reason), "no reason")
        self.expect("rows", outcome.rows is None, "rows of a transfer that failed")
        self.expect("T2", self.has_cause(rid, outcome.result), "{} without a cause", outcome.result)

    def has_cause(self, rid: int, result: TransferResult) -> bool:
        world, tid = self.world, self.tids.get(rid, 0)
        match result:
            case TransferResult.CANCELLED:
                return rid in world.cancelled
            case TransferResult.ENCODER:
                return tid in self.given_up
            case TransferResult.LOST:
                return tid > 0 and world.encoder is None
            case TransferResult.TOO_LARGE:
                return tid > 0 and world.n_rows(tid) * world.geometry.row_bytes > world.limits.staging_budget
            case TransferResult.TIMEOUT:
                return self.is_overdue(rid)
        return False  # an honest encoder breaks no protocol

    def is_overdue(self, rid: int) -> bool:
        """Returns whether the time of a transfer is over, or that for what the encoder has to do for it."""
        world, tid = self.world, self.tids.get(rid, 0)
        if world.now - world.submitted[rid] >= world.limits.deadline:
            return True
        is_writing = any(key[0] == tid and key not in self.filled for key in self.granted)
        if is_writing:
            limit = world.limits.round_timeout
        else:
            limit = world.limits.open_timeout if tid not in self.described else math.inf
        return world.now - self.progress.get(tid, world.now) >= limit

    # After each tick.

    def check_quiet_tick(self, n_events: int, n_messages: int) -> None:
        """Looks at a tick that followed another at once."""
        core = self.world.core
        self.expect("T1", core.trace.n_events == n_events, "a tick without news did something")
        self.expect("T1", len(core.outbox) == n_messages, "a tick without news said something")
        self.check_nothing_left_undone()
        for rid in core._ledger.need_blocks:
            self.waits.setdefault(rid, 0)
        for rid, poll in self.polls.items():
            self.expect("P1", poll not in ENDS or core.poll(rid) is poll, "{!r} was not the end", poll)

    def check_nothing_left_undone(self) -> None:
        ledger, stats = self.world.core._ledger, self.world.core.stats()
        states = [session.state for session in ledger.live.values()]
        needing = {s.rid for s in ledger.live.values() if s.state is TransferState.NEED}
        self.expect("L1", TransferState.READY not in states, "rows were not copied")
        self.expect("L1", not ledger.need_blocks or stats.n_free == 0, "blocks were not lent")
        self.expect("L1", needing == {*ledger.need_blocks, *ledger.need_memory}, "who waits is in no line")
        is_full = stats.n_active == self.world.limits.max_active
        self.expect("L1", self.world.encoder is None or not stats.n_queued or is_full, "a transfer was not opened")
        self.expect("L1", self.world.core.next_deadline() > self.world.now, "a transfer that is overdue was left")
        self.check_kill_is_wanted()

    def check_kill_is_wanted(self) -> None:
        drains_since = [self.ended[tid] for tid, _ in self.owner.values() if tid in self.ended]
        is_due = any(self.world.now - since >= self.world.limits.drain_timeout for since in drains_since)
        self.expect("K1", not is_due or self.world.core.kill_wanted == self.world.epoch, "no kill after the time")

    def check_idle(self) -> None:
        """Looks at a core whose transfers have all ended."""
        stats = self.world.core.stats()
        rest = (stats.n_in_use, stats.n_quarantined, stats.n_active, stats.staging_bytes)
        self.expect("A5", rest == (0, 0, 0, 0) and stats.n_free == self.world.geometry.n_blocks, "{} are left", rest)
