"""The processes that decode the images of a server: a few, each with limits of memory and of processor time.

They start when they are needed. One that dies costs the image that it was at.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import msgspec.msgpack
from gevent.event import Event
from gevent.lock import BoundedSemaphore

from corosrv.base.errors import ChannelClosed, CorosrvError, DecoderUnavailable, InvalidImage, ProtocolError, TooBusy
from corosrv.base.waits.elsewhere import call_in_thread
from corosrv.contracts.jobs import Image
from corosrv.images.decoding import DecodeImage, DecodingRefused, FromDecoder, ImageDecoded, ImageFormat
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Log
from corosrv.workers.worker.parent.linked_process import ControlListener, LinkedProcess
from corosrv.workers.worker.parent.process import Exit

log = logging.getLogger("corosrv.images")

TIMEOUT = 30.0  # seconds by the clock, for an image whose decoding takes no processor time; the process limits that
COMMAND = (sys.executable, "-m", "corosrv.images.decoder")


class DecoderProcess(ControlListener[FromDecoder, Any]):
    """Owns a process that decodes one image at a time. Belongs to the thread of one hub.

    A process that dies of an image, or hangs, loses that image alone; its owner makes another.
    """

    def __init__(self, command: Sequence[str] = COMMAND, timeout: float = TIMEOUT) -> None:
        """Starts the process. Blocks the hub for milliseconds. Raises DecoderUnavailable."""
        codec: StructCodec[DecodeImage, FromDecoder] = StructCodec(FromDecoder, msgspec.msgpack)
        self._link: LinkedProcess[DecodeImage, FromDecoder, Any, Any] = LinkedProcess(self, codec, codec)
        self._timeout = timeout
        self._news = Event()  # an answer, or the end
        self._answer: ImageDecoded | DecodingRefused | None = None
        self._exit: Exit | None = None
        self._is_slow = False  # and was killed for it
        try:
            self._link.start(command)
        except OSError as error:
            raise DecoderUnavailable(f"no process could be started that decodes the image: {error.strerror}") from error

    @property
    def pid(self) -> int:
        return self._link.pid

    @property
    def is_alive(self) -> bool:
        """Returns whether it may decode another image."""
        return self._exit is None and not self._is_slow

    def decode(self, message: DecodeImage, data: bytes, room: int) -> ImageDecoded:
        """Asks the process to decode an image into the memory file `room`. Waits. One greenlet at a time.

        Raises InvalidImage, also where the process dies of the image, and DecoderUnavailable.
        """
        self._answer = None
        if self.is_alive:
            self._news.clear()
        with self._sealed(data) as source, contextlib.suppress(ChannelClosed):  # its end says why
            self._link.control.send(message, [source, room])
        with gevent.Timeout(self._timeout, False):
            self._news.wait()
        if self._answer is None and self.is_alive:
            self._is_slow = True
            self._link.end_within(0)
        return self._result(message)

    @staticmethod
    @contextlib.contextmanager
    def _sealed(data: bytes) -> Iterator[int]:
        try:
            fd = descriptors.make((data,))
        except OSError as error:
            raise DecoderUnavailable(f"the image could not be handed to its decoder: {error.strerror}") from error
        try:
            yield fd
        finally:
            os.close(fd)

    def _result(self, message: DecodeImage) -> ImageDecoded:
        match self._answer:
            case ImageDecoded() as decoded:
                if not 0 < decoded.width * decoded.height <= message.n_pixels or decoded.width < 1:
                    raise ProtocolError(f"a decoder made {decoded} of {message.n_pixels} pixels")
                return decoded
            case DecodingRefused(reason):
                raise InvalidImage(reason, message.param)
        subject = f"{message.param}: the {message.image_format}"
        log.warning("%s ended the process that decoded it, by %s", subject, self._exit)
        code = None if self._exit is None else self._exit.code
        if self._is_slow or code == -signal.SIGXCPU:
            raise InvalidImage(f"{subject} takes too long to be decoded", message.param)
        if code == -signal.SIGKILL:  # by an operator, or a kernel that had no memory left
            raise DecoderUnavailable("the process that decoded the image was killed: try again")
        raise InvalidImage(f"{subject} cannot be decoded: its decoder ended by {self._exit}", message.param)

    def close(self) -> None:
        """Ends the process; does not wait for its end."""
        self._link.kill()

    # What the process says.

    def on_control(self, message: FromDecoder) -> None:
        match message:
            case ImageDecoded() | DecodingRefused():
                self._answer = message
                self._news.set()
            case Fatal():
                log.error("a decoder of images ends: %s", message.reason)
            case Log() | DroppedLogs():
                log.debug("a decoder of images: %s", message)

    def on_end(self, exit: Exit, fault: str) -> None:
        self._exit = exit
        self._news.set()


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
        """Ends the processes, busy ones after their image. Does not wait for their end."""
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
