"""The server's side of one process that decodes images."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import gevent
import msgspec.msgpack
from gevent.event import Event

from corosrv.base.errors import ChannelClosed, DecoderUnavailable, InvalidImage, ProtocolError
from corosrv.images.decoder_messages import DecodeImage, DecodingRefused, FromDecoder, ImageDecoded
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Log
from corosrv.workers.worker.parent.linked_process import LinkedProcess
from corosrv.workers.worker.parent.process import Exit

log = logging.getLogger("corosrv.images")

TIMEOUT = 30.0  # seconds by the clock, for an image whose decoding takes no processor time; the process limits that
COMMAND = (sys.executable, "-m", "corosrv.images.decoder")


class DecoderProcess:
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
        """Has an image decoded into the memory file `room`. Waits. One greenlet at a time.

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

    def on_lane(self, lane: int, message: Any, n_bytes: int) -> None:
        """Does nothing: a decoder has no lanes, so nobody calls it."""

    def wait_for_room(self, lane: int) -> None:
        """Does nothing: a decoder has no lanes, so nobody calls it."""

    def on_lane_broken(self, lane: int, fault: str) -> None:
        """Does nothing: a decoder has no lanes, so nobody calls it."""

    def on_end(self, exit: Exit, fault: str) -> None:
        self._exit = exit
        self._news.set()
