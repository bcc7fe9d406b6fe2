"""All orders of steps: two transfers that share one block, exhaustively; and a state machine for hypothesis."""

from __future__ import annotations

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.images.transfer.world import World

DEPTH = 8


def steps(world: World) -> list[str]:
    """Returns the steps that change something now."""
    encoder = world.encoder
    choices = {
        "tick": True,
        "cancel": 1 in world.rids and world.core.result(1) is None,
        "cancel_other": 2 in world.rids and world.core.result(2) is None,
        "crash": encoder is not None,
        "read": encoder is not None and bool(world.to_encoder),
        "encode": encoder is not None and bool(encoder.encoding),
        "write": encoder is not None and bool(encoder.grants),
        "deliver_first": bool(world.to_language),
        "deliver_last": len(world.to_language) > 1,
        "repeat": bool(world.to_language) and world.to_language[0] not in world.to_language[1:],
    }
    return [name for name, is_possible in choices.items() if is_possible]


def take(world: World, step: str) -> None:
    match step:
        case "tick":
            world.tick()
        case "cancel":
            world.cancel(1)
            world.send()
        case "cancel_other":
            world.cancel(2)
            world.send()
        case "crash":
            world.crash()
            world.start()
        case "read":
            world.encoder_reads()
        case "encode":
            world.to_language += world.encoder.encode(world.encoder.encoding[0])
        case "write":
            world.to_language += world.encoder.write()
        case "deliver_first":
            world.deliver(world.to_language.pop(0))
        case "deliver_last":
            world.deliver(world.to_language.pop())
        case "repeat":
            world.to_language.append(world.to_language[0])


def fingerprint(world: World) -> str:
    """Returns what decides how a world goes on, so that no state is explored twice."""
    core, encoder = world.core, world.encoder
    sessions = [
        (s.rid, s.tid, s.state, s.gen, s.filled, s.done, s.received, s.total, s.allocation, s.meta is None)
        for s in core._ledger.sessions.values()
    ]
    ledger = core._ledger
    lines = [list(line) for line in (ledger.queued, ledger.need_memory, ledger.need_blocks, ledger.ready)]
    parts = (encoder.encoding, encoder.grants, encoder.holding, encoder.floor)
    return repr((world.epoch, sessions, lines, world.to_encoder, world.to_language, parts, sorted(world.rules.quiet)))


def test_two_transfers_and_one_block_keep_the_rules_in_every_order():
    start = World(n_blocks=1, block_rows=1, n_rows=lambda tid: 2, max_active=2)
    start.submit()
    start.submit()
    start.tick()
    worlds, explored = [start], {fingerprint(start)}

    for _ in range(DEPTH):
        following = []
        for world in worlds:
            for step in steps(world):
                other = copy.deepcopy(world)
                take(other, step)
                if (key := fingerprint(other)) not in explored:
                    explored.add(key)
                    following.append(other)
        worlds = following

    assert len(explored) > 150
    for world in worlds[:: max(1, len(worlds) // 100)]:
        world.run(100)
        world.check_idle()


class TransferMachine(RuleBasedStateMachine):
    """Lets hypothesis choose the steps, and shrink those that break a rule."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(n_blocks=2, block_rows=2, n_rows=lambda tid: 1 + tid * 3 % 11, max_active=2)

    @precondition(lambda self: len(self.world.rids) < 6)
    @rule()
    def submit(self) -> None:
        self.world.submit()

    @precondition(lambda self: self.world.rids)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.world.cancel(data.draw(st.sampled_from(self.world.rids)))

    @rule(data=st.data())
    def take_step(self, data: st.DataObject) -> None:
        possible = [step for step in steps_without_cancel(self.world)]
        take(self.world, data.draw(st.sampled_from(possible)))

    @rule(seconds=st.sampled_from((1.0, 6.0, 11.0, 31.0)))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @invariant()
    def rules_hold(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.run(300)
        self.world.check_idle()


def steps_without_cancel(world: World) -> list[str]:
    return [step for step in steps(world) if not step.startswith("cancel")] if world.rids else ["tick"]


TransferMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
TestTransferMachine = TransferMachine.TestCase
