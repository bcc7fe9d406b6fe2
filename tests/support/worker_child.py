"""A real worker child at the other end of real socket pairs, driven by hand."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, LogLine, OutputChunk
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import (
    PROTOCOL,
    Cancel,
    ControlToServer,
    ControlToWorker,
    HealthCheck,
    HealthCheckResult,
    Init,
    Lanes,
    Log,
    Predict,
    Ready,
    Shutdown,
    SlotFailed,
    SlotToServer,
    SlotToWorker,
    WorkerLeaving,
)
from corosrv.workers.wire.thread_channel import ThreadChannel

TIMEOUT = 20  # seconds that anything may take

Control = ThreadChannel[ControlToWorker, ControlToServer]
SlotChannel = ThreadChannel[SlotToWorker, SlotToServer]
TERMINAL = (Done, Failed, Cancelled)


class Heard(list[Any]):
    """One prediction's messages, the terminal one last."""

    @property
    def end(self) -> Any:
        return self[-1]

    @property
    def chunks(self) -> list[Any]:
        return [message.output for message in self if isinstance(message, OutputChunk)]

    @property
    def logs(self) -> str:
        return "".join(message.data for message in self if isinstance(message, LogLine))


def timed(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", TIMEOUT, 0))
    return sock


class HandDrivenChild:
    """A worker child that was started. Leaving the context kills it and all it started."""

    control: ThreadChannel[Any, Any]

    def __init__(self, module: str, env: Mapping[str, str], cwd: Path | None = None, python: str = sys.executable):
        self.ours, theirs = socket.socketpair()  # the ends of its control channel
        timed(self.ours)
        their_lifeline, self._lifeline = os.pipe()
        ends = ["--control", str(theirs.fileno()), "--lifeline", str(their_lifeline)]
        self.process = subprocess.Popen(
            [python, "-m", module, *ends],
            pass_fds=[theirs.fileno(), their_lifeline],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **env},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(their_lifeline)
        theirs.close()
        self.lanes: list[ThreadChannel[Any, Any]] = []

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        for channel in (self.control, *self.lanes):
            channel.close()
        self.drop_lifeline()

    def drop_lifeline(self) -> None:
        """As the kernel does for a server that has ended. Twice is harmless."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class ChildProcess(HandDrivenChild):
    """Runs a predictor, and gives the child a channel for each slot."""

    def __init__(
        self,
        reference: str,
        *,
        slots: int | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        python: str = sys.executable,
        directory: Path | None = None,
        protocol: int = PROTOCOL,
    ) -> None:
        super().__init__("corosrv.workers.worker", env or {}, cwd, python)
        self._directory = str(directory or "/nonexistent")
        self.sockets = [self.ours]
        self.control: Control = ThreadChannel(self.ours, StructCodec(ControlToServer))
        self.slots: list[SlotChannel] = self.lanes
        self.control.send(Init(reference, slots, protocol))
        self.setup_logs = ""  # what was printed until it was set up
        self.server_log = ""  # and since then, as far as it was read

    def set_up(self) -> Ready:
        """Waits until it is."""
        message = self.outcome()
        assert isinstance(message, Ready), message
        return message

    def outcome(self) -> Ready | SlotFailed:
        """Of set-up."""
        while isinstance(message := self.control.receive(), Log):
            self.setup_logs += message.data
        assert isinstance(message, Ready | SlotFailed), message
        if isinstance(message, Ready):
            self._open_slots(len(message.slots))
        return message

    def _open_slots(self, n_slots: int) -> None:
        pairs = [socket.socketpair() for _ in range(n_slots)]
        self.control.send(Lanes(), [theirs.fileno() for _, theirs in pairs])
        for ours, theirs in pairs:
            theirs.close()
            self.sockets.append(timed(ours))
            self.slots.append(ThreadChannel(ours, StructCodec(SlotToServer)))

    def start(self, id: str = "p", *, slot: int = 0, context: dict[str, str] | None = None, **input: Any) -> None:
        self.slots[slot].send(Predict(id, self._directory, input, context=context or {}))

    def hear(self, slot: int = 0) -> Heard:
        """Everything to the end of the prediction."""
        heard = Heard()
        while not heard or not isinstance(heard.end, TERMINAL):
            message = self.slots[slot].receive()
            assert message is not None, f"the channel ended after {heard}"
            heard.append(message)
        return heard

    def predict(self, id: str = "p", *, slot: int = 0, context: dict[str, str] | None = None, **input: Any) -> Heard:
        self.start(id, slot=slot, context=context, **input)
        return self.hear(slot)

    def cancel(self, id: str = "p", slot: int = 0) -> None:
        self.control.send(Cancel(slot, id))

    def await_log(self, text: str, slot: int = 0) -> Heard:
        """Reads until the prediction has printed it."""
        heard = Heard()
        while text not in heard.logs:
            message = self.slots[slot].receive()
            assert message is not None, f"the channel ended after {heard}"
            assert not isinstance(message, TERMINAL), message
            heard.append(message)
        return heard

    def await_server_log(self, text: str) -> None:
        """Reads control until this was printed outside predictions."""
        while text not in self.server_log:
            message = self.control.receive()
            assert isinstance(message, Log), message
            self.server_log += message.data

    def check_health(self, id: str = "h") -> HealthCheckResult:
        self.control.send(HealthCheck(id))
        while isinstance(message := self.control.receive(), Log):
            self.server_log += message.data
        assert isinstance(message, HealthCheckResult), message
        return message

    def shut_down(self) -> int:
        """Returns the exit status."""
        self.control.send(Shutdown())
        while isinstance(message := self.control.receive(), Log):
            self.server_log += message.data
        assert isinstance(message, WorkerLeaving), message
        return self.process.wait(TIMEOUT)


def write_predictor(directory: Path, source: str, name: str = "predict.py") -> Path:
    path = directory / name
    path.write_text(source)
    return path


def names(messages: Sequence[Any]) -> list[str]:
    return [type(message).__name__ for message in messages]
