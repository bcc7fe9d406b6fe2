"""The child's end of the control channel, and the thread that reads it: it runs whatever user code does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import NoReturn, Protocol

from corosrv.errors import BadFrame
from corosrv.wire.codec import StructCodec
from corosrv.wire.messages import Cancel, ControlToServer, ControlToWorker, DroppedLogs, Fatal, HealthCheck, Init, Lanes
from corosrv.wire.thread_channel import ThreadChannel
from corosrv.worker.child.outbox import Drops, Ferry, Outbox


class ControlListener(Protocol):
    """Handles the server's messages after Init. Called in the control thread; must not wait."""

    def add_slots(self, fds: Sequence[int]) -> None:
        """Takes the ends of the slots' channels; the listener owns them."""

    def cancel(self, slot: int, id: str) -> None: ...

    def check_health(self, id: str) -> None: ...

    def shut_down(self) -> None: ...


class Control:
    """Owns the inherited socket. Any thread sends, through `outbox`."""

    def __init__(self, fd: int, ferry: Ferry) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        codec: StructCodec[ControlToServer, ControlToWorker] = StructCodec(ControlToWorker)
        self._channel: ThreadChannel[ControlToServer, ControlToWorker] = ThreadChannel(
            self._socket, codec, takes_fds=True
        )
        self.drops = Drops(lambda count, interval_ms: self.outbox.post(DroppedLogs(count, interval_ms)))
        self.outbox: Outbox[ControlToServer] = Outbox(self._socket, codec, ferry, self.drops)
        self._init: SimpleQueue[Init] = SimpleQueue()

    def let_go(self) -> None:
        """Closes the socket in a forked copy, which would otherwise hide the worker's end from the server."""
        self._socket.close()

    def start(self, listener: ControlListener) -> None:
        """Starts the thread that reads the channel; the process ends when the channel does."""
        threading.Thread(target=self._read, args=(listener,), name="corosrv-control", daemon=True).start()

    def wait_for_init(self) -> Init:
        return self._init.get()

    def _read(self, listener: ControlListener) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                self._dispatch(message, listener)
        except BadFrame as error:
            self.outbox.post(Fatal(f"the control channel is broken: {error}"))
        except BaseException as error:  # the server has to hear why before this process ends
            self.outbox.post(Fatal(f"{type(error).__name__}: {error}"))
        die()

    def _dispatch(self, message: ControlToWorker, listener: ControlListener) -> None:
        if isinstance(message, Init):
            self._init.put(message)
        elif isinstance(message, Lanes):
            listener.add_slots(self._channel.take_fds())
        elif isinstance(message, Cancel):
            listener.cancel(message.slot, message.id)
        elif isinstance(message, HealthCheck):
            listener.check_health(message.id)
        else:
            listener.shut_down()


def die() -> NoReturn:
    """Ends this process and everything that user code started, at once: the server is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # Only a group of our own: whoever started us by hand may be in another.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
