"""The server's side of one encoder process: its start, its greeting and its end."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corosrv.base.errors import ChannelClosed, ProtocolError
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import child_environment
from corosrv.images.encoder.check import describe_end
from corosrv.images.transfer.messages import PROTOCOL_VERSION, Hello, ToEncoder, ToLanguage
from corosrv.images.transfer.pool import SharedPool
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Log, ProcessMessage
from corosrv.workers.worker.parent.process import Exit
from corosrv.workers.worker.parent.supervised import ServingProcess

log = logging.getLogger("corosrv.vision")

START = 300.0  # seconds that a process may take to open its files


@dataclass(frozen=True, kw_only=True)
class EncoderCommand:
    """Says what an encoder process opens, and how it computes."""

    model: str
    mmproj: str
    n_threads: int
    nice: int = 0  # above this process's own
    image_min_tokens: int = 0  # rows of an image; 0: as many as the projector says
    image_max_tokens: int = 0
    on_gpu: bool = True  # if there is one
    supports: tuple[str, ...] = ()  # what the decode loop does for rows; see corosrv.images.transfer.messages

    @property
    def words(self) -> list[str]:
        """The command line, without the descriptors."""
        options = ["--model", self.model, "--mmproj", self.mmproj, "--threads", str(self.n_threads)]
        options += ["--nice", str(self.nice), "--image-min-tokens", str(self.image_min_tokens)]
        options += ["--image-max-tokens", str(self.image_max_tokens), *["--on-processor"] * (not self.on_gpu)]
        for need in self.supports:
            options += ["--supports", need]
        return [sys.executable, "-m", "corosrv.images.encoder", *options]

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the process: its threads sleep while they wait for each other, unless told otherwise.

        Beside streams they seldom run at the same time: spinning, they would use up the little time that they get.
        """
        return {"OMP_WAIT_POLICY": "PASSIVE"} | child_environment()


class EncoderLink(ServingProcess[ToEncoder, ToLanguage | ProcessMessage, Any, Any]):
    """One encoder process. It is READY once it has opened its files and greeted as the pool's encoder must."""

    _log = log
    _stopped = "the encoder was stopped"

    def __init__(
        self, command: EncoderCommand, pool: SharedPool, epoch: int, on_message: Callable[[ToLanguage], None]
    ) -> None:
        """Calls `on_message` with the messages of a READY process; it must not wait."""
        codec: StructCodec[ToEncoder, ToLanguage | ProcessMessage] = StructCodec(
            ToLanguage | ProcessMessage, msgspec.msgpack
        )
        super().__init__(codec, codec)
        self.epoch = epoch
        self._command = command
        self._pool = pool
        self._on_message = on_message
        self._fatal = ""

    @property
    def name(self) -> str:
        return f"encoder {self.epoch}"

    def start(self) -> None:
        """Starts the process and greets it. Blocks the hub for milliseconds."""
        self._pool.begin_epoch(self.epoch)
        try:
            self._link.start(self._command.words, self._command.environ, own_session=False)
        except OSError as error:
            self._enter(WorkerState.SETUP_FAILED, f"the encoder process could not be started: {error}")
            return
        self._limit_setup(START, self.kill, f"it was not ready within {START:g} s")
        with contextlib.suppress(ChannelClosed):  # its end says why
            self._link.control.send(self._hello, [self._pool.fd])

    @property
    def _hello(self) -> Hello:
        geometry = self._pool.geometry
        return Hello(self.epoch, PROTOCOL_VERSION, geometry, geometry.row_bytes // 4)

    def send(self, message: ToEncoder, fds: Sequence[int] = ()) -> None:
        """Sends a message; one to a process that is ending is dropped."""
        with contextlib.suppress(ChannelClosed):
            self._link.control.send(message, fds)

    # What the process says.

    def on_control(self, message: ToLanguage | ProcessMessage) -> None:
        match message:
            case Hello():
                self._greeted(message)
            case Fatal():
                self._fatal = message.reason
            case Log() | DroppedLogs():
                log.debug("encoder %d: %s", self.epoch, message)
            case _:
                if self.state is not WorkerState.READY:
                    raise ProtocolError(f"{type(message).__name__} came before the greeting")
                self._on_message(message)

    def _greeted(self, hello: Hello) -> None:
        if hello != self._hello:
            raise ProtocolError(f"it greets as {hello}, where {self._hello} was due")
        if self.state is WorkerState.STARTING:
            self._enter(WorkerState.READY)

    def _describe_end(self, exit: Exit, fault: str) -> str:
        end = f"{exit} ({fault})" if fault else str(exit)
        was_ready = self.state is WorkerState.READY
        return describe_end(end, self._fatal, was_ready, self._command.model, self._command.mmproj)

    def stop(self, timeout: float = 0.0) -> None:
        """Ends the process. Waits, at most for the seconds in which the kernel ends what was killed."""
        self._is_stopping = True
        if not self._stop_unstarted():
            self._link.end_within(timeout)
