"""The processes that decode the images of a server: a few, each with limits of memory and of processor time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
from collections.abc import Callable, Iterator

import gevent
from gevent.lock import BoundedSemaphore

from corosrv.base.errors import CorosrvError, DecoderUnavailable, TooBusy
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs import Image
from corosrv.images.decoder_messages import DecodeImage
from corosrv.images.decoder_process import DecoderProcess
from corosrv.images.recognition import ImageFormat

log = logging.getLogger("corosrv.images")

MOST = 2  # processes, each of which decodes one image; others wait
WAIT = 30.0  # seconds
_LARGE = 1 << 18  # bytes of pixels that are copied and hashed in a thread


class DecoderPool:
    """Owns the processes, which start when they are needed. Belongs to the thread of one hub."""

    def __init__(self, make: Callable[[], DecoderProcess] = DecoderProcess) -> None:
        self._make = make
        self._permits = BoundedSemaphore(MOST)
        self._idle: list[DecoderProcess] = []
        self._is_closed = False

    def start(self) -> None:
        """Starts a process, so that the first image does not wait for it. Blocks the hub for milliseconds."""
        try:
            self._idle.append(self._make())
        except DecoderUnavailable as error:  # the first image tries again
            log.error("%s", error)

    def decode(self, data: bytes, image_format: ImageFormat, n_pixels: int, param: str, max_side: int = 0) -> Image:
        """Decodes an image whose header has `n_pixels`. Waits, for its turn as well. `max_side`: see DecodeImage.

        An image that nobody waits for any more is decoded to its end. Raises InvalidImage, DecoderUnavailable, TooBusy.
        """
        if not self._permits.acquire(timeout=WAIT):
            raise TooBusy("too many images are being decoded: try again")
        message = DecodeImage(image_format.value, len(data), n_pixels, param, max_side)
        outcome: Image | CorosrvError = gevent.spawn(self._outcome, message, data).get()
        if isinstance(outcome, CorosrvError):
            raise outcome
        return outcome

    def _outcome(self, message: DecodeImage, data: bytes) -> Image | CorosrvError:
        """Returns the error instead of raising it: gevent would print it, whoever may expect it."""
        try:
            with self._decoder() as decoder, _room(3 * message.n_pixels) as room:
                decoded = decoder.decode(message, data, room)
                n_bytes = 3 * decoded.width * decoded.height
                arguments = room, decoded.width, decoded.height
                return call_in_thread(_read, *arguments) if n_bytes > _LARGE else _read(*arguments)
        except CorosrvError as error:
            return error
        finally:
            self._permits.release()

    @contextlib.contextmanager
    def _decoder(self) -> Iterator[DecoderProcess]:
        """Lends a process that lives; one that still does afterwards is there for the next image."""
        self._idle = [decoder for decoder in self._idle if decoder.is_alive]
        decoder = self._idle.pop() if self._idle else self._make()
        try:
            yield decoder
        finally:
            self._idle.append(decoder)
            if self._is_closed:
                self.close()

    def close(self) -> None:
        """Ends the processes, those that decode as soon as they have. Does not wait for their end."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()


@contextlib.contextmanager
def _room(n_bytes: int) -> Iterator[int]:
    """Makes a memory file for pixels, whose size nobody can change: one that was cut would end its readers."""
    with contextlib.ExitStack() as closing:
        try:
            fd = os.memfd_create("corosrv-pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            closing.callback(os.close, fd)
            os.ftruncate(fd, n_bytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError as error:
            raise DecoderUnavailable(f"there is no room for the pixels of the image: {error.strerror}") from error
        yield fd


def _read(room: int, width: int, height: int) -> Image:
    """Copies pixels out of their room and hashes them: a millisecond for a megabyte."""
    n_bytes = 3 * width * height
    with mmap.mmap(room, n_bytes, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
        return Image.of_pixels(width, height, mapped[:])
