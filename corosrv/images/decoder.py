"""`python -m corosrv.images.decoder --control FD --lifeline FD`: decodes images, which only a server starts.

A file that ends Pillow, or that never ends it, ends this process and costs no other request its image.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import argparse
import math
import mmap
import resource
import time
from queue import SimpleQueue

import msgspec.msgpack
import PIL.Image
import PIL.WebPImagePlugin  # the one of our four formats that Pillow would look for among all others

from corosrv.base.errors import InvalidImage, ProtocolError
from corosrv.images.decoding import DecodeImage, DecodingRefused, ImageDecoded, ImageFormat, decode
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import ProcessMessage
from corosrv.workers.worker.child import lifeline
from corosrv.workers.worker.child.control import Control, Ferry
from corosrv.workers.worker.child.lifeline import lower_priority

CPU_SECONDS = 10.0  # of the processor that one image may take; then the kernel ends this process
PIXEL_BYTES = 32  # of memory that a pixel may take while it is decoded, turned and put on paper
SPARE_BYTES = 64 << 20  # of memory, for decoders' tables
_NICE = 5  # decoding computes for a moment, while every stream waits for its next token

ToServer = ImageDecoded | DecodingRefused
Task = tuple[DecodeImage, tuple[int, ...]]


class ImageDecoder:
    """Decodes one image after another, each within limits of memory and of processor time."""

    def __init__(self, control_fd: int) -> None:
        codec: StructCodec[ToServer | ProcessMessage, DecodeImage] = StructCodec(DecodeImage, msgspec.msgpack)
        self._control: Control[ToServer, DecodeImage] = Control(control_fd, codec, Ferry())
        self._tasks: SimpleQueue[Task] = SimpleQueue()  # of one at most: the server waits for its answer

    def run(self) -> None:
        """Decodes for as long as the server lives."""
        PIL.Image.preinit()
        self._control.start(lambda message, fds: self._tasks.put((message, fds)))
        while True:
            message, fds = self._tasks.get()
            try:
                self._control.outbox.post(answer(message, fds))
            finally:
                descriptors.close_all(fds)


def answer(message: DecodeImage, fds: tuple[int, ...]) -> ToServer:
    """Decodes an image into the room that came with it. Raises ProtocolError for what no server sends."""
    if len(fds) != 2:
        raise ProtocolError(f"{len(fds)} descriptors came with an image, where 2 are needed")
    source, room = fds
    limit_resources(PIXEL_BYTES * message.n_pixels + 2 * message.n_bytes + SPARE_BYTES, CPU_SECONDS)
    try:
        data = bytes(descriptors.map_value(source, message.n_bytes))
        image_format = ImageFormat(message.image_format)
        width, height, pixels = decode(data, image_format, message.n_pixels, message.param, message.max_side)
    except InvalidImage as error:
        return DecodingRefused(str(error))
    with mmap.mmap(room, 3 * message.n_pixels) as target:
        target[: len(pixels)] = pixels
    return ImageDecoded(width, height)


def limit_resources(n_bytes: int, seconds: float) -> None:
    """Limits the memory and the processor time that this process takes from now on. A later call sets new limits."""
    with open("/proc/self/statm") as file:
        n_pages = int(file.read().split()[0])
    _lower(resource.RLIMIT_AS, n_pages * mmap.PAGESIZE + n_bytes)
    _lower(resource.RLIMIT_CPU, math.ceil(time.process_time() + seconds))


def _lower(kind: int, limit: int) -> None:
    """Sets the limit that may be raised again, unless the system's own is lower."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    lifeline.hang_on(options.lifeline)
    lower_priority(_NICE)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):  # it writes neither its memory nor anything else
        resource.setrlimit(kind, (0, 0))
    ImageDecoder(options.control).run()


if __name__ == "__main__":
    main(sys.argv[1:])
