"""The frame of the live picture: the server at one moment, in numbers and words of its own.

Holds nothing that a request said.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class LiveSlot(msgspec.Struct, omit_defaults=True):
    """A slot, by its place in the list. `read` of its prompt's tokens are there, `cached` of them from the cache."""

    state: Literal["idle", "reading", "decoding", "paused"]
    task: int = -1  # its number; nothing that a request said
    prompt: int = 0
    read: int = 0
    cached: int = 0
    written: int = 0


class LiveSteps(msgspec.Struct, omit_defaults=True):
    """The steps of a decode loop since the frame before: rows that read prompts, rows that decode.

    `step_s`: seconds spent in them. The last three are means, in seconds, where something was measured.
    """

    seconds: float
    steps: int
    step_s: float
    reading: int
    decoding: int
    written: int
    cached: int
    wakes: int
    ttft: float | None = None
    itl: float | None = None
    queue_wait: float | None = None


class LiveCache(msgspec.Struct):
    """Prefixes that were kept, and the prompt tokens that came from them (`hits`) or were computed (`misses`)."""

    entries: int
    bytes: int
    hits: int
    misses: int


class LiveEngine(msgspec.Struct, omit_defaults=True):
    """A model's decode loop. `wakes`: eventfds written; `polled`: readers without one. `recent`: not in the first frame
    after nobody watched."""

    model: str
    n_slots: int
    running: int
    waiting: int
    paused: int
    readers: int
    polled: int
    wakes: int
    preempted: int
    steps: int
    written: int
    ended: dict[str, int]
    cache: LiveCache
    slots: list[LiveSlot] | None = None
    recent: LiveSteps | None = None


class LiveModel(msgspec.Struct, omit_defaults=True):
    """A model and its state. `progress`: of a download, in bytes."""

    id: str
    state: str
    progress: dict[str, int] | None = None


class LiveHub(msgspec.Struct):
    """The hub: by how many seconds it was late at most since the frame before, and what the collector took."""

    lag: float
    collections: int
    collection_s: float
    longest_collection: float


class LiveHttp(msgspec.Struct, omit_defaults=True):
    """HTTP: answers so far, streams being sent without those of watchers, and connections with their greenlets."""

    answers: int
    streams: int
    watchers: int
    connections: int | None = None
    greenlets: int | None = None


class LiveQueue(msgspec.Struct, omit_defaults=True):
    """A queue of calls. `classes`: how many wait by priority, 1 before 9; `oldest`: seconds that the first has waited.

    `of`: handlers of this server, or models of upstreams.
    """

    of: Literal["handlers", "upstreams"]
    key: str
    state: str
    depth: int
    max_depth: int
    in_flight: int
    permits: int
    classes: dict[str, int]
    oldest: float | None = None


class LivePool(msgspec.Struct):
    """A pool of worker processes, by their states; `permits` and `in_flight` are of those that are ready."""

    name: str
    min: int
    max: int
    target: int
    workers: dict[str, int]
    permits: int
    in_flight: int
    depth: int
    restarts: int


class LiveUpstream(msgspec.Struct):
    """Another server that requests go to."""

    id: str
    state: str
    in_flight: int
    concurrency: int
    ok: int
    failed: int


class LiveEncoder(msgspec.Struct):
    """The encoder of a model's images."""

    model: str
    state: Literal["up", "degraded"]
    active: int
    queued: int
    free_blocks: int
    blocks: int
    cache_hits: int
    restarts: int


class LiveGrpc(msgspec.Struct):
    """The gRPC process."""

    state: str
    streams: int
    calls: int


class LivePredictor(msgspec.Struct):
    """The predictor's worker process and its slots."""

    state: str
    free: int
    busy: int
    running: int
    restarts: int


class LiveFrame(msgspec.Struct, omit_defaults=True):
    """The server at one moment (`time`: Unix). What a server has not got is absent."""

    time: float
    state: str
    hub: LiveHub
    http: LiveHttp
    models: list[LiveModel] | None = None
    engines: list[LiveEngine] | None = None
    queues: list[LiveQueue] | None = None
    pools: list[LivePool] | None = None
    upstreams: list[LiveUpstream] | None = None
    encoders: list[LiveEncoder] | None = None
    grpc: LiveGrpc | None = None
    predictor: LivePredictor | None = None
