"""`python -m corosrv.images.encoder --model FILE --control FD --lifeline FD`: the encoder, which only a server
starts.

It joins two threads: one reads messages and writes rows, the main one encodes. An encode cannot be interrupted, so that
cancels, grants and the end of the server are for the other thread.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # -m puts the working directory first, where a module may be called as one of Python's is

import argparse
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import PriorityQueue, SimpleQueue
from typing import Protocol

import msgspec.msgpack

from corosrv.base.errors import LoadError, ProtocolError, WireError
from corosrv.images.encoder.encoding import Encoding, EncodingFailed, PoolWriter
from corosrv.images.encoder.mtmd import ProjectorOptions
from corosrv.images.encoder.opening import open_projector
from corosrv.images.encoder.side import Action, Encode, EncoderSide, Reply, Write
from corosrv.images.transfer import messages
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import Fatal, ProcessMessage
from corosrv.workers.worker.child import lifeline
from corosrv.workers.worker.child.control import Control, Ferry

_MEASURE, _ENCODE = 0, 1  # in this order
LAST_WORDS = 5.0  # seconds in which the server takes the reason of an end


class RowSource(Protocol):
    """Defines what makes rows of images. Belongs to the thread that encodes."""

    n_embd: int  # numbers of a row

    def encode(self, width: int, height: int, pixels: memoryview) -> Encoding:
        """Returns the segments and rows of an image. Raises EncodingFailed."""

    def measure(self, width: int, height: int) -> int:
        """Returns how many tokens an image of this size becomes. Raises EncodingFailed."""


@dataclass(frozen=True, slots=True)
class PendingItem:
    """Holds an image that waits for the main thread, and owns the descriptor of its pixels; -1 for none."""

    message: messages.OpenTransfer
    pixels: int


class EncoderProcess:
    """Owns the control channel and, from the first Hello on, the pool and the transfers."""

    def __init__(self, control_fd: int, open_source: Callable[[], RowSource], nice: int = 0) -> None:
        """Takes the channel. Encoding gives way to processes of a nice value lower than this one's plus `nice`.

        `open_source` is called in the thread that encodes; it may raise LoadError.
        """
        codec: StructCodec[messages.ToLanguage | ProcessMessage, messages.ToEncoder] = StructCodec(
            messages.ToEncoder, msgspec.msgpack
        )
        self._control: Control[messages.ToLanguage, messages.ToEncoder] = Control(control_fd, codec, Ferry())
        self._open_source = open_source
        self._nice = nice
        self._hellos: SimpleQueue[tuple[messages.Hello, tuple[int, ...]]] = SimpleQueue()
        self._is_greeted = False
        # Of the main thread, by kind and number; no more than the server has opened and asked.
        self._tasks: PriorityQueue[tuple[int, int, PendingItem | messages.MeasureImage]] = PriorityQueue()
        self._numbers = itertools.count()
        # Held for decisions and writes, by both threads: once a cancel is answered, no write goes on.
        self._lock = threading.Lock()
        self._side: EncoderSide | None = None  # once both files are open and the pool is mapped
        self._writer: PoolWriter

    def run(self) -> None:
        """Loads the files and encodes for as long as the process lives. Returns where it cannot, and has said why."""
        self._control.start(self._on_message)  # before this thread is nice: that one has milliseconds of work
        lifeline.lower_priority(self._nice)
        try:
            source = self._open_source()
            self._begin(source.n_embd)
        except (LoadError, WireError) as error:
            self._control.outbox.post(Fatal(str(error)))
            self._control.outbox.flush(LAST_WORDS)
            return
        while True:
            *_, task = self._tasks.get()
            if isinstance(task, messages.MeasureImage):
                self._measure(source, task)
            else:
                self._encode(source, task)

    def _begin(self, n_embd: int) -> None:
        """Maps the pool that comes with the first Hello, and answers it. Waits for it. Raises ProtocolError."""
        hello, fds = self._hellos.get()
        try:
            if hello.version != messages.PROTOCOL_VERSION:
                raise WireError(
                    f"the server speaks version {hello.version} of the protocol, not {messages.PROTOCOL_VERSION}"
                )
            if len(fds) != 1:
                raise WireError(f"{len(fds)} descriptors came with the first message, where the pool's is needed")
            if hello.n_embd not in (0, n_embd):
                raise WireError(f"rows have {hello.n_embd} numbers for the server, where the model has {n_embd}")
            self._writer = PoolWriter(fds[0], hello.geometry, hello.epoch, n_embd)
        finally:
            descriptors.close_all(fds)
        with self._lock:
            self._side = EncoderSide(hello.epoch, hello.geometry, n_embd)
            self._control.outbox.post(messages.Hello(hello.epoch, messages.PROTOCOL_VERSION, hello.geometry, n_embd))

    def _on_message(self, message: messages.ToEncoder, fds: tuple[int, ...]) -> None:
        """Handles a message in the control thread. Raises WireError for one before the answer to the first Hello."""
        if isinstance(message, messages.Hello) and not self._is_greeted:
            self._is_greeted = True
            self._hellos.put((message, fds))
            return
        with self._lock:
            if self._side is None:
                raise WireError(f"{type(message).__name__} came before this process was ready")
            if isinstance(message, messages.MeasureImage):
                self._tasks.put((_MEASURE, next(self._numbers), message))
                spare = fds
            else:
                spare = self._carry_out(self._side.receive(message), fds)
        descriptors.close_all(spare)

    def _carry_out(self, actions: list[Action], fds: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Carries out the side's actions, and returns the descriptors that none of them took."""
        for action in actions:
            if isinstance(action, Write):
                self._writer.write(action.grant, action.encoding, action.n)
            elif isinstance(action, Reply):
                self._control.outbox.post(action.message)
            elif isinstance(action, Encode):
                pixels, fds = (fds[0], fds[1:]) if fds else (-1, ())
                self._tasks.put((_ENCODE, next(self._numbers), PendingItem(action.message, pixels)))
        return fds

    def _measure(self, source: RowSource, message: messages.MeasureImage) -> None:
        try:
            n_tokens = source.measure(message.width, message.height)
        except EncodingFailed:  # the encode says why
            n_tokens = 0
        self._control.outbox.post(messages.ImageMeasured(message.epoch, message.width, message.height, n_tokens))

    def _encode(self, source: RowSource, task: PendingItem) -> None:
        """Encodes one image in the main thread, unless it was cancelled already."""
        tid, result = task.message.tid, self._result(source, task)
        with self._lock:
            assert self._side is not None
            if isinstance(result, Encoding):
                self._carry_out(self._side.encoded(tid, result))
            elif result is not None:
                self._carry_out(self._side.failed(tid, result))

    def _result(self, source: RowSource, task: PendingItem) -> Encoding | EncodingFailed | None:
        try:
            with self._lock:
                if self._side is None or not self._side.is_live(task.message.tid):
                    return None
            image = task.message.image
            pixels = descriptors.map_value(task.pixels, 3 * image.width * image.height)
            return source.encode(image.width, image.height, pixels)
        except ProtocolError as error:
            return EncodingFailed("bad_image", str(error))
        except EncodingFailed as error:
            return error
        finally:
            if task.pixels >= 0:
                os.close(task.pixels)


def open_tried(options: ProjectorOptions) -> RowSource:
    """Opens the projector. Raises LoadError."""
    return open_projector(options)[0]


def main(arguments: list[str], open_source: Callable[[ProjectorOptions], RowSource] = open_tried) -> None:
    """Encodes until the server ends or cannot be served. `open_source` opens what makes rows of images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--mmproj", required=True)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--nice", type=int, default=0, help="by how much decoding goes before encoding")
    parser.add_argument("--image-min-tokens", type=int, default=0, help="rows of an image; 0: as the projector says")
    parser.add_argument("--image-max-tokens", type=int, default=0)
    parser.add_argument("--on-processor", action="store_true", help="also where there is a GPU")
    parser.add_argument("--supports", action="append", default=[], choices=[messages.MROPE, messages.NON_CAUSAL])
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    options = parser.parse_args(arguments)
    os.environ["GGML_NO_BACKTRACE"] = "1"  # it would start a debugger, which waits, in a process that is ending
    lifeline.hang_on(options.lifeline)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    files = ProjectorOptions(
        model=options.model,
        mmproj=options.mmproj,
        n_threads=options.threads,
        image_min_tokens=options.image_min_tokens,
        image_max_tokens=options.image_max_tokens,
        on_gpu=not options.on_processor,
        supports=options.supports,
    )
    EncoderProcess(options.control, functools.partial(open_source, files), options.nice).run()
    os._exit(1)  # libmtmd may have threads of its own, and destructors that wait for them


if __name__ == "__main__":
    main(sys.argv[1:])
