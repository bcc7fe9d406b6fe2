"""The server's side of one encoder process: its start, its greeting and its end."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gevent
import msgspec

from corosrv.base.errors import ChannelClosed, ProtocolError
from corosrv.contracts.jobs.setup import WorkerState, check_move
from corosrv.contracts.settings import child_environment
from corosrv.images.encoder.checking import describe_end
from corosrv.images.transfer.messages import PROTOCOL_VERSION, Hello, ToEncoder, ToLanguage
from corosrv.images.transfer.pool import SharedPool
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import DroppedLogs, Fatal, Log, ProcessMessage
from corosrv.workers.worker.parent.linked_process import LinkedProcess
from corosrv.workers.worker.parent.process import Exit

log = logging.getLogger("corosrv.vision")

START = 300.0  # seconds that a process may take to open its files


@dataclass(frozen=True, kw_only=True)
class EncoderCommand:
    """Says what an encoder process opens, and how it computes."""

    model: str
    mmproj: str
    n_threads: int
    nice: int = 0  # above this process's own
    image_max_tokens: int = 0  # rows of an image; 0: as many as the projector says
    supports: tuple[str, ...] = ()  # what the decode loop does for rows; see corosrv.images.transfer.messages

    @property
    def words(self) -> list[str]:
        """The command line, without the descriptors."""
        options = ["--model", self.model, "--mmproj", self.mmproj, "--threads", str(self.n_threads)]
        options += ["--nice", str(self.nice), "--image-max-tokens", str(self.image_max_tokens)]
        for need in self.supports:
            options += ["--supports", need]
        return [sys.executable, "-m", "corosrv.images.encoder", *options]

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the process: its threads sleep while they wait for each other, unless told otherwise.

        Beside streams they seldom run at the same time: spinning, they would use up the little time that they get.
        """
        return {"OMP_WAIT_POLICY": "PASSIVE"} | child_environment()


class EncoderLink:
    """Owns one encoder process. Belongs to the thread of one hub.

    The process is READY once it has opened its files and greeted as the pool's encoder must.
    """

    def __init__(
        self,
        command: EncoderCommand,
        pool: SharedPool,
        epoch: int,
        on_message: Callable[[ToLanguage], None],
        on_change: Callable[[EncoderLink], None],
    ) -> None:
        """Calls `on_change` after each change of state, the last time when the process was reaped.

        `on_message` gets the messages of a READY process. Neither may wait.
        """
        self.epoch = epoch
        self.state = WorkerState.STARTING
        self.reason = ""  # why it has ended
        self._command = command
        self._pool = pool
        self._on_message = on_message
        self._on_change = on_change
        self._fatal = ""
        self._is_stopping = False
        self._start_timer: gevent.Greenlet | None = None
        codec: StructCodec[ToEncoder, ToLanguage | ProcessMessage] = StructCodec(
            ToLanguage | ProcessMessage, msgspec.msgpack
        )
        self._link: LinkedProcess[ToEncoder, ToLanguage | ProcessMessage, Any, Any] = LinkedProcess(self, codec, codec)

    @property
    def pid(self) -> int | None:
        return self._link.pid if self._link.is_started else None

    def start(self) -> None:
        """Starts the process and greets it. Blocks the hub for milliseconds."""
        self._pool.begin_epoch(self.epoch)
        try:
            self._link.start(self._command.words, self._command.environ, own_session=False)
        except OSError as error:
            self._end(WorkerState.SETUP_FAILED, f"the encoder process could not be started: {error}")
            return
        self._start_timer = gevent.spawn_later(START, self._link.kill, f"it was not ready within {START:g} s")
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

    def on_lane(self, lane: int, message: Any, n_bytes: int) -> None:
        """Does nothing: an encoder has no lanes, so nobody calls it."""

    def wait_for_room(self, lane: int) -> None:
        """Does nothing: an encoder has no lanes, so nobody calls it."""

    def on_lane_broken(self, lane: int, fault: str) -> None:
        """Does nothing: an encoder has no lanes, so nobody calls it."""

    def on_end(self, exit: Exit, fault: str) -> None:
        if self._is_stopping:
            return self._end(WorkerState.STOPPED, "the encoder was stopped")
        end = f"{exit} ({fault})" if fault else str(exit)
        was_ready = self.state is WorkerState.READY
        reason = describe_end(end, self._fatal, was_ready, self._command.model, self._command.mmproj)
        return self._end(WorkerState.DEFUNCT if was_ready else WorkerState.SETUP_FAILED, reason)

    # Its end.

    def kill(self, fault: str) -> None:
        """Kills the process, of which `fault` says what was wrong. Does not wait for its end."""
        self._link.kill(fault)

    def stop(self) -> None:
        """Ends the process. Waits, at most for the seconds in which the kernel ends what was killed."""
        self._is_stopping = True
        if self._link.is_started:
            self._link.end_within(0.0)
        elif self.state is WorkerState.STARTING:
            self._end(WorkerState.STOPPED, "the encoder was stopped")

    def _end(self, state: WorkerState, reason: str) -> None:
        if self._start_timer is not None:
            self._start_timer.kill(block=False)
        self._enter(state, reason)

    def _enter(self, state: WorkerState, reason: str = "") -> None:
        check_move(self.state, state)
        self.state = state
        self.reason = reason
        if self._start_timer is not None and state is WorkerState.READY:
            self._start_timer.kill(block=False)
        self._on_change(self)
