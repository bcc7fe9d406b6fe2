"""The language side's part of a pool and its channel, driven by hand."""

import contextlib
import os
import struct
import sys
from collections.abc import Iterator, Sequence

import gevent
import msgspec.msgpack
from gevent.event import Event
from gevent.queue import Queue

from corosrv.images.encoder.check import describe_end
from corosrv.images.transfer.messages import (
    PROTOCOL_VERSION,
    Geometry,
    GrantBlocks,
    Hello,
    ImagePixels,
    OpenTransfer,
    ToEncoder,
    ToLanguage,
)
from corosrv.images.transfer.pool import (
    FLOAT_BYTES,
    HEADER_BYTES,
    BlockHeader,
    SharedPool,
    block_at,
    header_at,
    pool_bytes,
    whole_pages,
)
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import Fatal, ProcessMessage
from corosrv.workers.worker.parent.linked_process import LinkedProcess
from corosrv.workers.worker.parent.process import Exit
from tests.support import token_encoder

PATIENCE = 60  # seconds; a start of Python, with numpy, on a loaded machine
EPOCH = 1


def geometry(n_blocks: int = 4, block_rows: int = 8, n_embd: int = 32) -> Geometry:
    """A pool's cut that SharedPool takes, whether or not it makes sense."""
    return Geometry(n_blocks, block_rows, FLOAT_BYTES * n_embd, whole_pages(block_rows * FLOAT_BYTES * n_embd))


class HandPool(SharedPool):
    """Owns a pool, and shows what stands in its blocks."""

    def __init__(self, shape: Geometry) -> None:
        super().__init__(shape)
        self.begin_epoch(EPOCH)

    def header(self, block: int) -> BlockHeader:
        return BlockHeader.unpack(os.pread(self.fd, HEADER_BYTES, header_at(block)))

    def rows(self, block: int) -> list[tuple[float, ...]]:
        """The rows that the block's header says it has."""
        n_embd, row_bytes = self.geometry.row_bytes // FLOAT_BYTES, self.geometry.row_bytes
        data = self.row_bytes(block)
        return [struct.unpack_from(f"<{n_embd}f", data, at) for at in range(0, len(data), row_bytes)]

    def row_bytes(self, block: int) -> bytes:
        """Those rows as they stand there."""
        return os.pread(self.fd, self.header(block).n * self.geometry.row_bytes, block_at(self.geometry, block))

    def content(self) -> bytes:
        return os.pread(self.fd, pool_bytes(self.geometry), 0)


@contextlib.contextmanager
def unsealed_copy(pool: HandPool) -> Iterator[int]:
    """The descriptor of a memory file with the same content, which anybody may resize."""
    fd = os.memfd_create("test-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, pool.content())
        yield fd
    finally:
        os.close(fd)


class HandDriver:
    """Owns an encoder process, sends what a test says and keeps what it answers. Is a ProcessListener."""

    module = "corosrv.images.encoder"

    def __init__(self, model: str, mmproj: str, supports: Sequence[str] = (), more: Sequence[str] = ()) -> None:
        self.answers: Queue[ToLanguage] = Queue()
        self.fatal = ""
        self.exit: Exit | None = None
        self.ended = Event()
        codec: StructCodec[ToEncoder, ToLanguage | ProcessMessage] = StructCodec(
            ToLanguage | ProcessMessage, msgspec.msgpack
        )
        self.files = model, mmproj
        self.has_answered = False
        self.process = LinkedProcess(self, codec, codec)
        command = [sys.executable, "-m", self.module, "--model", model, "--mmproj", mmproj, "--threads", "1"]
        self.process.start([*command, *(f"--supports={need}" for need in supports), *more])

    def on_control(self, message) -> None:
        if isinstance(message, Fatal):
            self.fatal = message.reason
        else:
            self.answers.put(message)

    def on_end(self, exit: Exit, fault: str) -> None:
        self.exit = exit
        self.ended.set()

    def send(self, message: ToEncoder, fds: Sequence[int] = ()) -> None:
        self.process.control.send(message, fds)

    def answer(self) -> ToLanguage:
        """The next answer. Waits."""
        message = self.answers.get(timeout=PATIENCE)
        self.has_answered = True
        return message

    def greet(
        self, pool: HandPool, n_embd: int = 0, version: int = PROTOCOL_VERSION, epoch: int = EPOCH, fd: int = -1
    ) -> None:
        self.send(Hello(epoch, version, pool.geometry, n_embd), [pool.fd if fd < 0 else fd])

    def open_image(self, tid: int, width: int, height: int, pixels: bytes) -> None:
        fd = descriptors.make([pixels])
        try:
            self.send(OpenTransfer(EPOCH, tid, ImagePixels(width, height)), [fd])
        finally:
            os.close(fd)

    def grant(self, pool: HandPool, tid: int, gen: int, offset: int, blocks: tuple[int, ...]) -> None:
        self.send(GrantBlocks(EPOCH, tid, gen, offset, blocks, len(blocks) * pool.geometry.block_rows))

    def wait_for_end(self) -> str:
        """Returns how the process ended. Waits."""
        assert self.ended.wait(PATIENCE)
        return str(self.exit)

    def report(self) -> str:
        return describe_end(str(self.exit), self.fatal, self.has_answered, *self.files)

    def close(self) -> None:
        self.process.end_within(0)
        gevent.idle()


class TokenDriver(HandDriver):
    """Owns an encoder process whose rows are those of tokens."""

    module = token_encoder.MODULE

    def open_tokens(self, tid: int, ids: Sequence[int]) -> None:
        image = token_encoder.token_image(ids)
        self.open_image(tid, image.width, image.height, image.pixels)
