"""GET /v1/live: the server at work, as a stream of frames that is made once for all who watch.

A frame is made only while somebody watches, at most four times a second, and encoded once. It holds nothing that a
request said. Each watcher holds the last frame that it has not been sent, and no more: who reads slowly skips frames,
and who stops reading is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Annotated, Literal

import gevent
import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from corosrv.base.errors import CorosrvError, NotOffered, Refused, ShuttingDown, Unavailable
from corosrv.base.waits import own_hub
from corosrv.contracts.jobs.buffered import BufferedReader
from corosrv.web.http import sse
from corosrv.web.http.lean_flask import current
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.openapi import operation


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


log = logging.getLogger("corosrv.http")

INTERVAL = 0.25  # seconds between two frames at least
MOST_WATCHERS = 2_000
SENDS_PER_S = 1_000  # with more watchers than a quarter of these, frames come less often
PATIENCE = 10.0  # seconds that a watcher may take nothing
_FIRST_FRAME = 10.0  # seconds that one is waited for
_RETRY = b"retry: 2000\n\n"  # milliseconds after which a browser comes back


MakeFrame = Callable[[int], LiveFrame]  # of a number of watchers


class FrameReader(BufferedReader[bytes]):
    """Holds the last frame that one watcher has not been sent; a newer one takes its place."""

    def put(self, frame: bytes) -> None:
        """Replaces the frame that is unread. Never waits."""
        self.take_nowait()
        self.add_item(frame, 0)

    def cancel(self) -> None:
        """Ends the watcher; a frame that is unread may still be taken. Never waits."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
            self.finish()


class LiveFeed:
    """Makes frames while somebody watches, in one greenlet, and hands each to all watchers.

    Belongs to the hub's thread, but for `single_frame` where the calling thread has no hub.
    """

    def __init__(self, begin: Callable[[], MakeFrame]) -> None:
        """`begin`: makes what makes frames, which knows the one before, each time that somebody watches again."""
        self._begin = begin
        self._encoder = msgspec.json.Encoder()
        self._watchers: dict[FrameReader, bool] = {}  # whether it is a stream's
        self._maker: gevent.Greenlet | None = None
        self._next_at = 0.0  # of the monotonic clock: when a frame may be made
        self._has_begun = False  # a frame was made since somebody watches
        self._is_closed = False
        self.n_frames = 0  # encoded so far

    def watch(self, is_stream: bool = True) -> FrameReader:
        """Adds a watcher, who gets the next frame and all that follow. Raises ShuttingDown and Unavailable.

        `is_stream`: it counts as one of `watchers`.
        """
        if self._is_closed:
            raise ShuttingDown("the server is shutting down")
        if len(self._watchers) >= MOST_WATCHERS:
            raise Unavailable(f"{MOST_WATCHERS} clients watch already, which is the most; try again later")
        reader = FrameReader(lambda: self._drop(reader))
        self._watchers[reader] = is_stream
        if self._maker is None:
            self._maker = gevent.spawn(self._run)
        return reader

    def _drop(self, reader: FrameReader) -> None:
        self._watchers.pop(reader, None)

    def single_frame(self) -> bytes:
        """Returns one frame, with `recent` counts where there is a hub: it waits for a second frame then."""
        if own_hub() is None:
            return self._encode(self._begin())
        n_frames = 1 if self._has_begun else 2
        with self.watch(is_stream=False) as reader:
            for _ in range(n_frames):
                frames = reader.take(_FIRST_FRAME)
        if not frames:
            raise ShuttingDown("the server is shutting down")
        return frames[0]

    def _run(self) -> None:
        try:
            make = self._begin()
            while True:
                gevent.sleep(max(self._next_at - time.monotonic(), 0.0))
                if not self._watchers:
                    return
                self._next_at = time.monotonic() + max(INTERVAL, len(self._watchers) / SENDS_PER_S)
                frame = self._encode(make)
                self._has_begun = True
                for reader in self._watchers:
                    reader.put(frame)
        except Exception:  # a bug; those who watch would wait for ever
            log.exception("the live picture could not be made")
            self._end_streams()
        finally:
            self._maker = None
            self._has_begun = False

    def _encode(self, make: MakeFrame) -> bytes:
        self.n_frames += 1
        return self._encoder.encode(make(sum(self._watchers.values())))

    def close(self) -> None:
        """Ends every stream: nobody should wait for the end of those who only watch. Twice is harmless."""
        self._is_closed = True
        self._end_streams()

    def _end_streams(self) -> None:
        for reader in list(self._watchers):
            reader.cancel()


class _FrameEvents(sse.Encoder[bytes]):
    """Makes events of frames. A frame is framed anew for each watcher: that is a copy, and no encoding."""

    def encode(self, items: list[bytes]) -> bytes:
        return b"data: %b\n\n" % items[-1] if items else b""

    def encode_error(self, error: CorosrvError) -> bytes:
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode({"error": {"message": str(error)}})


class LiveQuery(msgspec.Struct):
    """Members of the query."""

    frames: Annotated[
        Literal[0, 1], Meta(description="1: one frame as JSON, for programs; without it a stream of events")
    ] = 0


def blueprint(feed: LiveFeed, stats: HttpStats, is_offered: bool, write_timeout: float) -> Blueprint:
    """Makes the route. `write_timeout`: seconds that a client may take nothing of any answer."""
    routes = Blueprint("live", __name__)
    limits = sse.StreamLimits(stats, -1, min(PATIENCE, write_timeout))

    @routes.get("/v1/live")
    @operation(
        "Server",
        "Watch the server at work",
        "Server-sent events, each a frame: slots and steps of each decode loop, queues, caches, the hub, worker pools, "
        "upstreams. At most four a second, fewer with more than 250 watchers; nothing of what requests say is in them. "
        "A watcher that stops reading is dropped after 10 s. `frames=1` answers one frame as JSON.",
        answer=LiveFrame,
        events=LiveFrame,
        statuses=(400, 501, 503),
        query=LiveQuery,
    )
    def live() -> Response:
        http_request = current(request)
        is_single = _is_single(http_request.args.get("frames", ""))
        if not is_offered:
            raise NotOffered("the live picture is switched off, as metrics are (COROSRV_METRICS=0)")
        if is_single:
            return _uncached(Response(feed.single_frame(), mimetype="application/json"))
        if http_request.method == "HEAD":
            return _uncached(Response(mimetype="text/event-stream"))
        if own_hub() is None:
            raise NotOffered("a live stream needs a server that waits through gevent: ask for frames=1")
        events = sse.EventStream(http_request.environ, feed.watch(), _RETRY, _FrameEvents(), limits)
        return sse.response(events)

    return routes


def _uncached(answer: Response) -> Response:
    answer.headers["Cache-Control"] = "no-cache"
    return answer


def _is_single(word: str) -> bool:
    if word not in ("", "0", "1"):
        raise Refused(f"frames must be 0 or 1, not {word[:40]!r}", "frames")
    return word == "1"
