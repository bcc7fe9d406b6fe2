"""Waits, in a request's greenlet, for all images of a prompt."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from gevent.event import Event

from corosrv.base.errors import ClientGone, DeadlinePassed
from corosrv.contracts.jobs import Image, Terms
from corosrv.images.vision.encoder import ImageEncoder
from corosrv.images.vision.task import EncodedImage, ImageTask
from corosrv.models.pool import Watch

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
        self,
        encoder: ImageEncoder,
        images: Iterable[Image],
        caller: str,
        wake: Callable[[], None],
        check: CheckSizes,
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
