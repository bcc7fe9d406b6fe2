"""Encodes images for requests: each once, however many requests have it.

A request's greenlet waits in `encode_images` for all images of its prompt.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import gevent
from gevent.event import Event

from corosrv.base.errors import (
    ClientGone,
    CorosrvError,
    DeadlinePassed,
    EncoderUnavailable,
    EncodeTimedOut,
    Refused,
    ShuttingDown,
)
from corosrv.base.recent import RecentValues
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import Image, Terms
from corosrv.images.transfer.core import TransferCore, TransferOutcome
from corosrv.images.transfer.messages import ImagePixels
from corosrv.images.transfer.pool import SharedPool, pool_geometry
from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import TransferLimits, TransferStats
from corosrv.images.vision.link import EncoderCommand
from corosrv.images.vision.pump import TransferPump
from corosrv.images.vision.supervisor import RECOVERY, CrashSuspects, EncoderSupervisor
from corosrv.images.vision.task import EncodedImage, ImageTask, Key, Wake, read_pieces
from corosrv.images.vision.turns import EncoderTurns
from corosrv.models.pool import Watch

log = logging.getLogger("corosrv.vision")

BLOCK_ROWS = 16
_LARGE = 1 << 20  # bytes of rows that are copied and hashed in a thread
MOST_STANDSTILLS = 2  # of the encoder, at one image
_SMALLER = (
    "send a smaller one, or one with detail low; the operator can allow an encode more time (COROSRV_ENCODE_TIMEOUT_S)"
)
_UNSTABLE = "the encoder of images was restarted too often; try again in a minute"


@dataclass(frozen=True, kw_only=True)
class EncoderOptions:
    """Says how images are encoded; sizes are bytes, times seconds."""

    command: EncoderCommand
    n_blocks: int
    cache_bytes: int
    encode_limit: float
    limits: TransferLimits


@dataclass(frozen=True, slots=True)
class EncoderStats:
    """Holds a snapshot of an encoder's counters."""

    transfers: TransferStats
    n_restarts: int
    n_kills: int  # of the process, because it answered nothing or an encode did not end
    n_cache_hits: int
    cache_bytes: int
    is_degraded: bool


class ImageEncoder:
    """Owns the pool of rows, the encoder process and the images that were encoded last.

    Belongs to the thread of one hub, but for `close`.
    """

    def __init__(self, options: EncoderOptions, n_embd: int, turns: EncoderTurns | None = None) -> None:
        """Makes the pool; `n_embd` is the width of a row. Raises OSError if there is no memory for it.

        `turns`: that the process takes with a decode loop; None for none.
        """
        self._options = options
        self._width = n_embd
        geometry = pool_geometry(options.n_blocks, BLOCK_ROWS, n_embd)
        self._pool = SharedPool(geometry)
        self._core = TransferCore(geometry, options.limits, self._pool)
        self._pump = TransferPump(self._core, self._find_image, self._look, options.encode_limit, self._on_late, turns)
        self._supervisor = EncoderSupervisor(options.command, self._pool, self._pump, self._on_crash)
        self._suspects = CrashSuspects()
        self._cache: RecentValues[Key, EncodedImage] = RecentValues(
            most_bytes=options.cache_bytes, size_of=lambda image: image.n_bytes
        )
        self._tasks: dict[tuple[str, str], ImageTask] = {}  # that are not over, by caller and image
        self._running: dict[int, ImageTask] = {}  # by the rid of their transfer
        self._refusal: CorosrvError | None = None  # of a server that ends

    def start(self) -> None:
        """Starts the process; waits until it serves. Raises LoadError where it cannot, and ShuttingDown."""
        self._pump.start()
        self._supervisor.start()

    @property
    def pid(self) -> int | None:
        return self._supervisor.pid

    @property
    def is_degraded(self) -> bool:
        """Returns whether images are refused because the process died too often."""
        return self._supervisor.is_unstable

    def stats(self) -> EncoderStats:
        self._pump.set_time()
        transfers = self._core.stats()
        return EncoderStats(
            transfers,
            self._supervisor.n_restarts,
            transfers.n_kills + self._pump.n_kills,
            self._cache.n_hits,
            self._cache.n_bytes,
            self.is_degraded,
        )

    # Requests.

    def n_tokens(self, image: Image, wake: Wake) -> int | None:
        """Returns how many tokens an image becomes, before it is encoded; see ImageSizes.n_tokens."""
        return self._pump.sizes.n_tokens(image, wake)

    def join(self, image: Image, caller: str, wake: Wake) -> ImageTask:
        """Begins to encode an image, unless it is there already or being encoded; `wake` is called at the end.

        To be ended by `leave`. Never waits. Raises EncoderBusy if too many wait, EncoderUnavailable, ShuttingDown, and
        Refused for an image that the encoder died of.
        """
        key = caller, image.sha256
        task = self._tasks.get(key)
        if task is None:
            task = self._begin(ImageTask(key, image, time.monotonic() + self._options.limits.deadline))
        task.join(wake)
        return task

    def leave(self, task: ImageTask, wake: Wake) -> None:
        """Ends a wait. An image that nobody waits for is encoded no more."""
        task.leave(wake)
        if not task.is_awaited and task.rid:
            self._drop(task)

    def _begin(self, task: ImageTask) -> ImageTask:
        if self._refusal is not None:
            raise self._refusal.fresh()
        if (encoded := self._cache.get(task.key)) is not None:
            task.end(encoded)
            return task
        self._submit(task)
        self._tasks[task.key] = task
        return task

    def _submit(self, task: ImageTask) -> None:
        """Begins a transfer. Raises EncoderBusy, EncoderUnavailable and Refused."""
        now = self._pump.set_time()
        if self._suspects.is_refused(task.image.sha256, now):
            raise Refused("the encoder ended twice while it encoded this image", None, "image_refused")
        if self.is_degraded:
            raise EncoderUnavailable(_UNSTABLE, math.ceil(RECOVERY))
        image = ImagePixels(task.image.width, task.image.height)
        task.rid = self._core.submit(image, task.ends_at - now)
        self._running[task.rid] = task
        self._pump.wake()

    def _drop(self, task: ImageTask) -> None:
        self._pump.set_time()
        self._core.forget(task.rid)
        self._running.pop(task.rid, None)
        self._tasks.pop(task.key, None)
        self._pump.wake()

    def _fail(self, task: ImageTask, error: CorosrvError) -> None:
        self._drop(task)
        task.end(error=error)

    # Transfers.

    def _find_image(self, rid: int) -> Image | None:
        task = self._running.get(rid)
        return None if task is None else task.image

    def _on_crash(self, sha256: str | None) -> None:
        if sha256 is not None:
            log.warning("the encoder ended while it encoded the image %s", sha256)
            self._suspects.add(sha256, time.monotonic())

    def _on_late(self, rid: int, is_still: bool) -> None:
        """Ends an image that takes too long. One whose encode stands still is tried once more."""
        task = self._running.get(rid)
        if task is None:
            return
        task.n_standstills += is_still
        if is_still and task.n_standstills < MOST_STANDSTILLS:
            return  # with its process, it is lost, and submitted again
        limit = self._options.encode_limit
        words = "the encoder stood still twice" if is_still else f"it took longer than {limit:g} s"
        self._fail(task, EncodeTimedOut(f"the image was not encoded: {words}; {_SMALLER}"))

    def _look(self) -> None:
        """Takes the results of transfers that have ended."""
        for rid, task in list(self._running.items()):
            if self.is_degraded:
                self._fail(task, EncoderUnavailable(_UNSTABLE, math.ceil(RECOVERY)))
            elif (outcome := self._core.result(rid)) is not None:
                self._core.forget(rid)
                del self._running[rid]
                task.rid = 0
                self._take(task, outcome)

    def _take(self, task: ImageTask, outcome: TransferOutcome) -> None:
        match outcome.result:
            case TransferResult.SUCCESS:
                gevent.spawn(self._read, task, outcome)
            case TransferResult.LOST:  # nobody has seen anything of it yet
                self._submit_again(task)
            case TransferResult.ENCODER | TransferResult.TOO_LARGE:
                self._fail(task, Refused(f"the image has no rows: {outcome.reason}", None, "image_not_encoded"))
            case _:
                self._fail(task, EncoderUnavailable(f"the image could not be encoded: {outcome.reason}"))

    def _submit_again(self, task: ImageTask) -> None:
        try:
            self._submit(task)
        except CorosrvError as error:
            self._fail(task, error)

    def _read(self, task: ImageTask, outcome: TransferOutcome) -> None:
        is_large = outcome.rows is not None and len(outcome.rows) > _LARGE
        try:
            arguments = outcome, self._width
            encoded = call_in_thread(read_pieces, *arguments) if is_large else read_pieces(*arguments)
        except Exception:
            log.exception("the rows of an image cannot be read")
            self._fail(task, EncoderUnavailable("the image could not be encoded; the server's log says why"))
            return
        self._tasks.pop(task.key, None)
        self._cache.put(task.key, encoded)
        task.end(encoded)

    # The end.

    def drain(self, message: str) -> None:
        """Refuses images from now on, also to those who wait."""
        self._refusal = ShuttingDown(message)
        for task in list(self._tasks.values()):
            self._fail(task, self._refusal)

    def close(self) -> None:
        """Ends the process and frees the pool. Waits for its end. Only the hub's thread may call it, once."""
        self.drain("the model is being unloaded")
        self._supervisor.stop()
        self._pump.stop()
        self._pool.close()


AT_ONCE = 4  # images of one request that wait for the encoder; the next follow as these end


MakeWatch = Callable[[Callable[[], None]], Watch]
CheckSizes = Callable[[Mapping[str, int]], None]  # of the tokens of each image, by its SHA-256


def encode_images(
    encoder: ImageEncoder,
    images: Iterable[Image],
    terms: Terms,
    make_watch: MakeWatch,
    check: CheckSizes = lambda n_tokens: None,
) -> dict[str, EncodedImage]:
    """Returns the rows of images by their SHA-256, each of which is encoded once. Waits.

    `make_watch` makes what calls a function when the request's client leaves. `check` is called once, before the first
    of them is encoded. Raises ClientGone, DeadlinePassed, what `check` raises, and what ImageEncoder.join raises; then
    nothing is encoded for this request any more.
    """
    wakeup = Event()
    batch = _ImageBatch(encoder, images, terms.caller, wakeup.set, check)
    try:
        if not batch.advance():
            _wait_for(batch, wakeup, terms, make_watch(wakeup.set))
        return batch.encoded
    finally:
        batch.leave()


def _wait_for(batch: _ImageBatch, wakeup: Event, terms: Terms, watch: Watch) -> None:
    """Waits for all images of a batch. Raises as encode_images does."""
    try:
        while not batch.advance():
            seconds = None if terms.deadline is None else terms.deadline - time.monotonic()
            if watch.is_gone:
                raise ClientGone("the client left while an image was encoded")
            if seconds is not None and seconds <= 0:
                raise DeadlinePassed("the request's time was over while an image was encoded")
            wakeup.wait(seconds)
            wakeup.clear()
    finally:
        watch.close()


class _ImageBatch:
    """The images of one request, of which some wait for the encoder at a time."""

    def __init__(
        self, encoder: ImageEncoder, images: Iterable[Image], caller: str, wake: Callable[[], None], check: CheckSizes
    ) -> None:
        self.encoded: dict[str, EncodedImage] = {}
        self._encoder = encoder
        self._caller = caller
        self._wake = wake
        self._check = check
        self._unmeasured = {image.sha256: image for image in images}
        self._n_tokens: dict[str, int] = {}
        self._pending = deque(self._unmeasured.values())
        self._tasks: list[ImageTask] = []

    def advance(self) -> bool:
        """Takes finished images and starts further ones; returns whether all are encoded.

        Raises what the check raises, and what an image has failed of.
        """
        if self._unmeasured and not self._measure():
            return False
        while True:
            for task in [task for task in self._tasks if task.is_over]:
                self._tasks.remove(task)
                self.encoded[task.image.sha256] = task.value()
            if not self._pending or len(self._tasks) >= AT_ONCE:
                return not self._pending and not self._tasks
            self._tasks.append(self._encoder.join(self._pending.popleft(), self._caller, self._wake))

    def _measure(self) -> bool:
        """Returns whether the tokens of all images are known. Raises what the check of them raises."""
        for sha256, image in list(self._unmeasured.items()):
            if (n_tokens := self._encoder.n_tokens(image, self._wake)) is not None:
                self._n_tokens[sha256] = n_tokens
                del self._unmeasured[sha256]
        if self._unmeasured:
            return False
        self._check(self._n_tokens)
        return True

    def leave(self) -> None:
        for task in self._tasks:
            self._encoder.leave(task, self._wake)
        self._tasks.clear()
