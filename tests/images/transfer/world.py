"""A core, its pool and its encoder, driven one step at a time under the eyes of the rules."""

from __future__ import annotations

import random
from collections.abc import Callable

from corosrv.images.transfer.core import TransferCore
from corosrv.images.transfer.messages import Geometry, ImagePixels, ToLanguage
from corosrv.images.transfer.session import Poll, TransferSession
from corosrv.images.transfer.stats import IgnoredReason, TransferLimits
from tests.images.transfer.encoder import HonestEncoder, PlainPool
from tests.images.transfer.rules import RULES, RuleChecker


def replace_part(core: TransferCore, part_class: type) -> None:
    """Makes a core, or the part of it that a class is derived from, one of that class."""
    if issubclass(part_class, TransferSession):
        queue = core._ledger.queue

        def queue_broken(*arguments) -> TransferSession:
            session = queue(*arguments)
            session.__class__ = part_class
            return session

        core._ledger.queue = queue_broken
    for part in (core, *vars(core).values(), core._ledger.allocator):
        if issubclass(part_class, type(part)):
            part.__class__ = part_class


class World:
    """Steps through the life of a core. All rules are checked after each step.

    `n_rows` says how long the item of a tid is; `part_class` replaces a part of the core by a broken one.
    """

    def __init__(
        self,
        *,
        n_blocks: int = 4,
        block_rows: int = 2,
        n_rows: Callable[[int], int] = lambda tid: 5,
        part_class: type | None = None,
        rules: frozenset[str] = RULES,
        **limits: float,
    ) -> None:
        self.geometry = Geometry(n_blocks, block_rows, 4, 4096)
        self.limits = TransferLimits(**{"max_active": 3, "max_rows": 4096, **limits})
        self.pool = PlainPool(self.geometry)
        self.core = TransferCore(self.geometry, self.limits, self.pool)
        if part_class is not None:
            replace_part(self.core, part_class)
        self.rules = RuleChecker(self, rules)
        self.n_rows = n_rows
        self.now = 0.0
        self.epoch = 0
        self.encoder: HonestEncoder | None = None
        self.to_encoder: list[object] = []
        self.to_language: list[ToLanguage] = []
        self.n_looked_at = 0  # messages of the outbox
        self.rids: list[int] = []
        self.submitted: dict[int, float] = {}
        self.cancelled: set[int] = set()
        self.start()

    # Steps.

    def start(self) -> None:
        """Starts the next encoder."""
        self.epoch += 1
        self.encoder = HonestEncoder(self.pool, self.epoch, self.n_rows)
        self.to_encoder.clear()
        self.core.encoder_up(self.epoch)
        self.check()

    def crash(self) -> None:
        """Kills and reaps the encoder; what it sent before may still come."""
        self.encoder = None
        self.rules.note_crash()
        self.core.encoder_down(self.epoch)
        self.check()

    def submit(self) -> int:
        rid = self.core.submit(ImagePixels(1, 1))
        self.rids.append(rid)
        self.submitted[rid] = self.now
        self.check()
        return rid

    def cancel(self, rid: int) -> None:
        self.cancelled.add(rid)
        self.core.cancel(rid)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.core.set_time(self.now)

    def tick(self) -> None:
        """Ticks twice: the second time nothing must happen."""
        self.core.tick()
        self.check()
        n_events, n_messages = self.core.trace.n_events, len(self.core.outbox)
        self.core.tick()
        self.rules.check_quiet_tick(n_events, n_messages)
        self.send()

    def send(self) -> None:
        """Hands the outbox over to the encoder."""
        self.rules.check_messages()
        self.to_encoder += self.core.outbox
        self.core.outbox.clear()
        self.n_looked_at = 0

    def encoder_reads(self) -> None:
        assert self.encoder is not None
        self.to_language += self.encoder.receive(self.to_encoder.pop(0))

    def deliver(self, message: ToLanguage) -> None:
        is_stale = message.epoch != self.epoch or self.encoder is None
        if not is_stale:
            self.rules.note_delivery(message)
        n_stale = self.core._ledger.counters.ignored[IgnoredReason.EPOCH]
        n_events = self.core.trace.n_events
        self.core.deliver(message)
        self.rules.check_delivery(is_stale, n_stale, n_events)
        self.check()

    # Many steps.

    def run_encoder(self) -> None:
        """Lets the encoder do all that it can, and delivers its answers."""
        self.send()
        while self.encoder and (self.to_encoder or self.encoder.encoding or self.encoder.grants):
            if self.to_encoder:
                self.encoder_reads()
            elif self.encoder.encoding:
                self.to_language += self.encoder.encode(self.encoder.encoding[0])
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
            if all(self.core.result(rid) for rid in self.rids) and not self.core._ledger.live:
                return
        self.rules.expect("L1", False, "a transfer does not end")

    # What the rules ask for.

    def check(self) -> None:
        self.rules.check()

    def take_messages(self) -> list[object]:
        """Returns the messages of the outbox that were not looked at yet."""
        messages = self.core.outbox[self.n_looked_at :]
        self.n_looked_at = len(self.core.outbox)
        return messages

    def check_idle(self) -> None:
        """Checks that everything has come back."""
        self.rules.check_idle()


class RandomRun:
    """Takes random steps in a world; with faults, all that may go wrong does."""

    def __init__(
        self, seed: int, *, has_faults: bool, part_class: type | None = None, rules: frozenset[str] = RULES
    ) -> None:
        self.random = random.Random(seed)
        self.has_faults = has_faults
        pick = self.random.choice
        sizes = {tid: self.random.randint(1, 20) for tid in range(1, 50)}
        self.world = World(
            n_blocks=pick((1, 2, 3, 4, 8)),
            block_rows=pick((1, 2, 3)),
            n_rows=sizes.__getitem__,
            part_class=part_class,
            rules=rules,
            max_active=pick((1, 2, 3, 4)),
            max_blocks_per_round=pick((1, 2, 4)),
            staging_budget=pick((64 if has_faults else 80, 200, 1 << 20)),
            max_rows=20,
            **({} if has_faults else {"open_timeout": 1e9, "round_timeout": 1e9, "deadline": 1e9}),
        )
        self.repeated: list[ToLanguage] = []

    def run(self, n_steps: int = 140) -> None:
        for _ in range(n_steps):
            self.step()
        self.finish()

    def step(self) -> None:
        world, roll = self.world, self.random.random()
        if roll < 0.12 and len(world.rids) < 6:
            world.submit()
        elif roll < 0.42:
            world.tick()
        elif roll < 0.60:
            if world.encoder and world.to_encoder:
                world.encoder_reads()
        elif roll < 0.78:
            self.encoder_works()
        elif roll < 0.90 or not self.has_faults:
            self.deliver()
        else:
            self.fault()

    def encoder_works(self) -> None:
        encoder = self.world.encoder
        if encoder is None:
            return
        if encoder.encoding and self.random.random() < 0.5:
            tid = self.random.choice(encoder.encoding)
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
        world = self.world
        match self.random.choice(("cancel", "repeat", "repeat", "repeat to encoder", "crash", "time", "time")):
            case "cancel" if world.rids:
                world.cancel(self.random.choice(world.rids))
            case "repeat" if self.repeated:
                world.deliver(self.random.choice(self.repeated[-5:]))
            case "repeat to encoder" if world.to_encoder:
                index = self.random.randrange(len(world.to_encoder))  # a message never comes before itself
                place = self.random.randint(index + 1, len(world.to_encoder))
                world.to_encoder.insert(place, world.to_encoder[index])
            case "crash" if world.encoder:
                world.crash()
            case "crash":
                world.start()
            case "time":
                world.pass_time(self.random.choice((0.5, 4.0, 6.0, 11.0, 31.0)))

    def finish(self) -> None:
        """Lets everything end, and checks what must hold then."""
        world = self.world
        if world.encoder is None:
            world.start()
        world.run(200)
        world.check_idle()
        if not self.has_faults:
            all_succeed = all(poll is Poll.SUCCESS for poll in world.rules.polls.values())
            world.rules.expect("T2", all_succeed, "without faults all succeed")
