"""The frames of the live picture: what follows from the difference between two, and what each slot is said to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from corosrv.contracts import settings
from corosrv.contracts.jobs import ModelCard, SlotState
from corosrv.contracts.jobs.worker import DecodeStats, Histogram
from corosrv.serving.live import LiveRecorder
from corosrv.serving.server import Server
from corosrv.web.http.metrics import HttpStats
from corosrv.web.live import LiveEngine, LiveFrame

NONE = Histogram((0,) * 16, 0.0)
STATS = DecodeStats(
    **{name: 0 for name in DecodeStats.__struct_fields__ if name not in ("queue_wait", "ttft", "itl")},
    queue_wait=NONE,
    ttft=NONE,
    itl=NONE,
)


class ScriptedPool:
    """A pool of one model, whose loop says what a test has it say."""

    def __init__(self) -> None:
        self.stats = msgspec.structs.replace(STATS, slots=2)
        self.slots = (SlotState(0, False), SlotState(1, False))

    def tell(self, *slots: SlotState, **counters: Any) -> None:
        self.slots = slots or self.slots
        self.stats = msgspec.structs.replace(self.stats, **counters)

    def models(self) -> tuple[ModelCard, ...]:
        return (ModelCard("tiny", 0),)

    def model_stats(self) -> dict[str, DecodeStats]:
        return {"tiny": self.stats}

    def slots_now(self) -> dict[str, tuple[SlotState, ...]]:
        return {"tiny": self.slots}


@pytest.fixture
def pool() -> ScriptedPool:
    return ScriptedPool()


@pytest.fixture
def recorder(pool: ScriptedPool) -> LiveRecorder:
    return make(pool)


def make(pool: ScriptedPool, stats: HttpStats | None = None, *, shows_slots: bool = True) -> LiveRecorder:
    server = Server(settings.load({"model": "synthetic:", "slots_endpoint": shows_slots, "v2": False}, environ={}))
    models: Any = SimpleNamespace(pool=pool, encoder_stats=dict)
    server.parts.models = models
    if stats is not None:
        server.context.http_stats = stats
    return LiveRecorder(server.context, server.parts)


def engine(frame: LiveFrame) -> LiveEngine:
    assert frame.engines is not None
    return frame.engines[0]


def states(frame: LiveFrame) -> list[str]:
    return [slot.state for slot in engine(frame).slots or ()]


def busy(number: int, task: int = 7, computed: int = 10, generated: int = 5) -> SlotState:
    return SlotState(number, True, task, 10, computed, 0, generated)


def test_the_first_frame_has_nothing_to_be_compared_with(recorder):
    assert engine(recorder.frame(1)).recent is None
    assert engine(recorder.frame(1)).recent is not None


def test_steps_are_those_since_the_frame_before(recorder, pool):
    pool.tell(steps=100, prompt_tokens=1000, generated_tokens=50)
    recorder.frame(1)
    first = Histogram((0,) * 15 + (2,), 3.0)
    pool.tell(steps=110, prompt_tokens=1200, generated_tokens=72, cached_tokens=8, step_s=0.2, ttft=first)

    recent = engine(recorder.frame(1)).recent

    assert (recent.steps, recent.reading, recent.written, recent.cached) == (10, 200, 22, 8)
    assert recent.decoding == 20  # two tokens came with the last row of a prompt
    assert (recent.step_s, recent.ttft, recent.itl) == (0.2, 1.5, None)


def test_a_slot_without_a_token_reads_and_one_with_some_decodes(recorder, pool):
    pool.tell(busy(0, computed=4, generated=0), busy(1))

    assert states(recorder.frame(1)) == ["reading", "decoding"]


def test_a_slot_that_stood_still_while_others_had_steps_is_paused(recorder, pool):
    pool.tell(busy(0), busy(1, task=8), steps=1, running=2, paused=1)
    recorder.frame(1)
    pool.tell(busy(0), busy(1, task=8, generated=6), steps=5)

    assert states(recorder.frame(1)) == ["paused", "decoding"]


def test_a_slow_step_pauses_nobody(recorder, pool):
    pool.tell(busy(0), busy(1, task=8), steps=1, running=2, paused=1)
    recorder.frame(1)

    assert states(recorder.frame(1)) == ["decoding", "decoding"]


def test_where_all_are_paused_no_step_is_waited_for(recorder, pool):
    pool.tell(busy(0), busy(1, task=8), steps=1, running=2, paused=2)
    recorder.frame(1)

    assert states(recorder.frame(1)) == ["paused", "paused"]


def test_a_slot_that_stands_still_is_not_paused_where_the_loop_says_nobody_is(recorder, pool):
    pool.tell(busy(0), busy(1, task=8), steps=1, running=2, paused=0)
    recorder.frame(1)
    pool.tell(steps=5)

    assert states(recorder.frame(1)) == ["decoding", "decoding"]


def test_another_task_in_the_slot_is_not_the_one_that_was_paused(recorder, pool):
    pool.tell(busy(0), busy(1, task=8), steps=1, running=2, paused=1)
    recorder.frame(1)
    pool.tell(busy(0, task=9), busy(1, task=8), steps=5)

    assert states(recorder.frame(1)) == ["decoding", "paused"]


def test_slots_are_hidden_where_their_endpoint_is(pool):
    assert engine(make(pool, shows_slots=False).frame(1)).slots is None


def test_the_worst_lag_since_the_frame_before_is_told_once(pool):
    stats = HttpStats()
    recorder = make(pool, stats)
    stats._note_lag(0.02)
    stats._note_lag(0.01)

    assert [recorder.frame(1).hub.lag, recorder.frame(1).hub.lag] == [0.02, 0.0]


def test_watchers_are_not_counted_as_streams(pool):
    stats = HttpStats()
    for _ in range(3):
        stats.stream_opened()

    http = make(pool, stats).frame(1).http
    for _ in range(3):
        stats.stream_closed()

    assert (http.streams, http.watchers) == (2, 1)


def test_nothing_is_said_of_parts_that_there_are_not(recorder):
    members = msgspec.json.decode(msgspec.json.encode(recorder.frame(1)))

    assert set(members) == {"time", "state", "hub", "http", "models", "engines"}
