"""The child's end of the control channel, and the thread that reads it: it runs whatever user code does."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Generic, NoReturn

from corosrv.base.errors import BadFrame
from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.process_messages import DroppedLogs, Fatal, ProcessMessage
from corosrv.workers.wire.thread_channel import ThreadChannel
from corosrv.workers.worker.child.outbox import Drops, Ferry, Outbox


class Control(Generic[Out, In]):
    """Owns the inherited socket. Any thread sends, through `outbox`."""

    def __init__(self, fd: int, codec: Codec[Out | ProcessMessage, In], ferry: Ferry) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._channel: ThreadChannel[Out | ProcessMessage, In] = ThreadChannel(self._socket, codec, takes_fds=True)
        self.drops = Drops(lambda count, interval_ms: self.outbox.post(DroppedLogs(count, interval_ms)))
        self.outbox: Outbox[Out | ProcessMessage] = Outbox(self._socket, codec, ferry, self.drops)
        self._poll = select.poll()
        self._watches: dict[int, Callable[[], None]] = {}

    def let_go(self) -> None:
        """Closes the socket in a forked copy, which would otherwise hide the worker's end from the server."""
        self._socket.close()

    def start(
        self,
        on_message: Callable[[In, tuple[int, ...]], None],
        on_tick: Callable[[], None] = lambda: None,
        interval: float | None = None,
    ) -> None:
        """Starts the thread that reads the channel; the process ends when the channel does.

        In that thread `on_message` is called with each message and its descriptors, which it owns, and `on_tick` every
        `interval` seconds, if it is not None. They must not wait.
        """
        arguments = (on_message, on_tick, interval)
        threading.Thread(target=self._run, args=arguments, name="corosrv-control", daemon=True).start()

    def watch_once(self, fd: int, on_readable: Callable[[], None]) -> None:
        """Calls a function in the control thread when a descriptor can be read, or has ended. Only in that thread."""
        self._watches[fd] = on_readable
        self._poll.register(fd, select.POLLIN)

    def _run(
        self, on_message: Callable[[In, tuple[int, ...]], None], on_tick: Callable[[], None], interval: float | None
    ) -> None:
        try:
            self._poll.register(self._socket, select.POLLIN)
            next_tick = time.monotonic()
            while self._turn(on_message, None if interval is None else max(0.0, next_tick - time.monotonic())):
                if interval is not None and time.monotonic() >= next_tick:
                    on_tick()
                    next_tick = time.monotonic() + interval
        except BadFrame as error:
            self.outbox.post(Fatal(f"the control channel is broken: {error}"))
        except BaseException as error:  # the server has to hear why before this process ends
            self.outbox.post(Fatal(f"{type(error).__name__}: {error}"))
        die()

    def _turn(self, on_message: Callable[[In, tuple[int, ...]], None], timeout: float | None) -> bool:
        """Waits for something to read, and handles it. Returns whether the channel goes on. Raises BadFrame."""
        goes_on = True
        for fd, _ in self._poll.poll(None if timeout is None else timeout * 1000):
            on_readable = self._watches.pop(fd, None)
            if on_readable is None:
                goes_on = self._receive(on_message)
            else:
                self._poll.unregister(fd)
                on_readable()
        return goes_on

    def _receive(self, on_message: Callable[[In, tuple[int, ...]], None]) -> bool:
        """Handles what has arrived. Returns whether the channel goes on."""
        with contextlib.suppress(BlockingIOError):
            while (message := self._channel.receive_nowait()) is not None:
                on_message(message, self._channel.take_fds())
            return False
        return True


def die() -> NoReturn:
    """Ends this process and everything that user code started, at once: the server is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # Only a group of our own: whoever started us by hand may be in another.
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    os._exit(1)
