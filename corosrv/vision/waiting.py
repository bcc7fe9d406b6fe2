"""Waits, in a request's greenlet, for all images of a prompt."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from gevent.event import Event

from corosrv.errors import ClientGone, DeadlinePassed
from corosrv.jobs import Image, Terms
from corosrv.models.pool import Watch
from corosrv.vision.cache import EncodedImage
from corosrv.vision.encoder import ImageEncoder
from corosrv.vision.task import ImageTask

AT_ONCE = 4  # images of one request that wait for the encoder; the next follow as these end


MakeWatch = Callable[[Callable[[], None]], Watch]


def encode_images(
    encoder: ImageEncoder, images: Iterable[Image], terms: Terms, make_watch: MakeWatch
) -> dict[str, EncodedImage]:
    """Returns the rows of images by their SHA-256, each of which is encoded once. Waits.

    `make_watch` makes what calls a function when the request's client leaves. Raises ClientGone, DeadlinePassed, and
    what ImageEncoder.join raises; then nothing is encoded for this request any more.
    """
    wakeup = Event()
    batch = _ImageBatch(encoder, images, terms.caller, wakeup.set)
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

    def __init__(self, encoder: ImageEncoder, images: Iterable[Image], caller: str, wake: Callable[[], None]) -> None:
        self.encoded: dict[str, EncodedImage] = {}
        self._encoder = encoder
        self._caller = caller
        self._wake = wake
        self._pending = deque({image.sha256: image for image in images}.values())
        self._tasks: list[ImageTask] = []

    def advance(self) -> bool:
        """Takes what has ended and begins what may be begun; returns whether all is there.

        Raises what one has failed of.
        """
        while True:
            for task in [task for task in self._tasks if task.is_over]:
                self._tasks.remove(task)
                self.encoded[task.image.sha256] = task.value()
            if not self._pending or len(self._tasks) >= AT_ONCE:
                return not self._pending and not self._tasks
            self._tasks.append(self._encoder.join(self._pending.popleft(), self._caller, self._wake))

    def leave(self) -> None:
        for task in self._tasks:
            self._encoder.leave(task, self._wake)
        self._tasks.clear()
