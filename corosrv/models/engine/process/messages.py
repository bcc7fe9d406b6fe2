"""Defines the messages between a front and an engine's process: msgpack maps with a `type`, over one Unix stream.

A front greets first. Jobs have numbers, which the front chooses; a number is used again by nobody. The engine's process
trusts no front: it checks every task as if it came from a client.
"""

from __future__ import annotations

import msgspec

from corosrv.contracts.jobs import Adapter, Chunk, SlotState
from corosrv.contracts.jobs.worker import DecodeStats
from corosrv.models.engine.binding import ModelInfo, Task
from corosrv.models.loadable import LoadProgress
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.faults import Fault

PROTOCOL = 5  # of these messages; a front that speaks another one is refused
MAX_FRAME = 1 << 30  # bytes of one message; embedding rows are the largest part of one
WINDOW = 1 << 18  # bytes of one job's chunks that its front may leave unread before the engine's process waits


class _EngineMessage(msgspec.Struct, tag_field="type", frozen=True, omit_defaults=True):
    pass


# From a front.


class FrontHello(_EngineMessage, frozen=True, tag="front_hello"):
    """Opens a connection of a front. `digest`: of the model and its settings, which the process must serve."""

    protocol: int
    digest: str


class SubmitTasks(_EngineMessage, frozen=True, tag="submit"):
    """Asks for the tasks of one job; TasksAccepted or TasksDeclined answers.

    `is_suspect`: the engine may have died of it, so that it runs while no other suspect of any front does.
    """

    number: int
    tasks: list[Task]
    caller: str = ""
    is_streamed: bool = False
    is_suspect: bool = False


class CancelTasks(_EngineMessage, frozen=True, tag="cancel"):
    """Ends a job's tasks; their last chunks say so."""

    number: int


class EndThoughts(_EngineMessage, frozen=True, tag="end_thoughts"):
    """Ends the thoughts of a job's tasks, as if their budgets were spent."""

    number: int


class ForgetTasks(_EngineMessage, frozen=True, tag="forget"):
    """Ends a job of which nothing more is read."""

    number: int


class ChunksRead(_EngineMessage, frozen=True, tag="read"):
    """Says how many more bytes of a job's chunks were read."""

    number: int
    n_bytes: int


class SlotQuestion(_EngineMessage, frozen=True, tag="question"):
    """Asks for one thing about slots and adapters; SlotReply answers."""

    id: int
    action: str  # slots, save_slot, restore_slot, erase_slot, adapters, set_adapters
    slot: int = -1
    path: str = ""
    caller: str = ""
    scales: dict[int, float] = {}


class BanTasks(_EngineMessage, frozen=True, tag="ban"):
    """Tells what engines have died of; to a front: that no front may send it.

    `fingerprint`: see RemoteJob.fingerprint; `seconds`: for which it is refused from now on.
    """

    fingerprint: bytes
    seconds: float


class AdapterScales(_EngineMessage, frozen=True, tag="scales"):
    """Tells the scales of LoRA adapters as somebody has set them: to all fronts, and by these to the next engine.

    `number`: of the change among those of this engine and the ones before it. The one with the highest number holds.
    """

    number: int
    scales: list[float]


class ReleaseIfIdle(_EngineMessage, frozen=True, tag="release_if_idle"):
    """Asks that the model is unloaded, unless it is in use: its memory is needed for another one. EngineRelease
    answers."""


# To a front.


class EngineHello(_EngineMessage, frozen=True, tag="engine_hello"):
    """Answers a FrontHello; the model may still be loading."""

    protocol: int
    pid: int


class EngineRefusal(_EngineMessage, frozen=True, tag="refusal"):
    """Answers a front that is not served, before its connection ends."""

    reason: str


class EngineLoading(_EngineMessage, frozen=True, tag="loading"):
    """Says how far the load is, again and again: who says nothing hangs."""

    progress: LoadProgress


class EngineLoaded(_EngineMessage, frozen=True, tag="loaded"):
    """Says that the model is ready, and with how many slots it fits into memory."""

    info: ModelInfo
    slots: int
    created: int  # Unix time
    stats: DecodeStats | None = None  # as of now


class EngineFailed(_EngineMessage, frozen=True, tag="load_failed"):
    """Says that the model cannot be loaded; the process ends."""

    reason: str


class EngineRelease(_EngineMessage, frozen=True, tag="release"):
    """Asks a front to leave if it does not use the model: the memory is needed for another one.

    `is_refused`: for the front that has asked for it, where something runs.
    """

    is_refused: bool = False


class TasksAccepted(_EngineMessage, frozen=True, tag="accepted"):
    """Says that a job's tasks wait or run.

    `adapter_scales`: of the tasks that came without; another engine is to go on with the same.
    """

    number: int
    adapter_scales: list[float] = []


class TasksDeclined(_EngineMessage, frozen=True, tag="declined"):
    """Says why a job's tasks do not run."""

    number: int
    fault: Fault


class TaskChunks(_EngineMessage, frozen=True, tag="chunks"):
    """Brings chunks of jobs, by their numbers."""

    by_job: dict[int, list[Chunk]]


class LoopCounters(_EngineMessage, frozen=True, tag="counters"):
    """Brings the counters of the decode loop: often while it runs, once a second at least."""

    stats: DecodeStats


class SlotAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Holds what a question about slots or adapters has brought."""

    slots: list[SlotState] = []
    n_tokens: int = 0
    n_bytes: int = 0
    adapters: list[Adapter] = []


class SlotReply(_EngineMessage, frozen=True, tag="answer"):
    """Answers the question of this id."""

    id: int
    value: SlotAnswer = SlotAnswer()
    fault: Fault | None = None


FromFront = (
    FrontHello | SubmitTasks | CancelTasks | EndThoughts | ForgetTasks | ChunksRead | SlotQuestion | BanTasks
    | AdapterScales | ReleaseIfIdle
)  # fmt: skip
ToFront = (
    EngineHello
    | EngineRefusal
    | EngineLoading
    | EngineLoaded
    | EngineFailed
    | EngineRelease
    | BanTasks
    | AdapterScales
    | TasksAccepted
    | TasksDeclined
    | TaskChunks
    | LoopCounters
    | SlotReply
)


def engine_codec() -> StructCodec[ToFront, FromFront]:
    return StructCodec(FromFront, msgspec.msgpack)


def front_codec() -> StructCodec[FromFront, ToFront]:
    return StructCodec(ToFront, msgspec.msgpack)
