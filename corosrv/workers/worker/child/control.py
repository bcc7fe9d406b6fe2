"""The child's end of the control channel, and the thread that reads it: it runs whatever user code does.

User code may print and record at any moment and never waits for ever: an `Outbox` queues what it sends, `Ferry` sends
it from one thread, and log messages are dropped and counted while the server does not read.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, NoReturn

from corosrv.base.errors import BadFrame
from corosrv.workers.wire import descriptors
from corosrv.workers.wire.codec import Codec, In, Out, SendQueue, framed
from corosrv.workers.wire.messages import DroppedLogs, Fatal, ProcessMessage
from corosrv.workers.wire.thread_channel import ThreadChannel

LOG_BACKLOG = 1 << 20  # bytes that may wait for a slow server before what is printed waits, too
LOG_PATIENCE = 1.0  # seconds that it waits
_AT_ONCE = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


class Drops:
    """Counts log messages that were dropped while the server did not read, and reports them once it does."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        """`tell(count, interval_ms)` sends the report."""
        self._tell = tell
        self._lock = threading.RLock()
        self._count = 0
        self._since = 0.0

    def add(self) -> None:
        with self._lock:
            self._since = self._since if self._count else time.monotonic()
            self._count += 1

    def report(self) -> None:
        with self._lock:
            count, self._count = self._count, 0
        if count:
            self._tell(count, int((time.monotonic() - self._since) * 1000))


class Outbox(Generic[Out]):
    """Sends messages over one socket, in order. Any thread may send, also a destructor within a call.

    What the socket takes goes out in the caller's thread. What it does not take waits, and the ferry sends it.
    """

    def __init__(self, sock: socket.socket, codec: Codec[Out, In], ferry: Ferry, drops: Drops | None = None) -> None:
        self._socket = sock
        self._codec = codec
        self._ferry = ferry
        self._drops = drops
        self._queue = SendQueue()
        # A destructor may print while this thread holds the lock: then it only queues, and whoever is sending goes on.
        self._lock = threading.RLock()
        self._has_room = threading.Condition(self._lock)
        self._is_sending = False
        self._is_on_ferry = False
        self._is_closed = False
        self._is_dropping = False
        self._listeners: list[Callable[[], object]] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_empty(self) -> bool:
        return not self._queue

    @property
    def _is_behind(self) -> bool:
        """True while so much waits for the server that logs have to wait, too."""
        return self._queue.n_bytes > LOG_BACKLOG

    def post(self, *messages: Out, fds: Sequence[int] = ()) -> None:
        """Sends messages or queues them; drops them once the other side has closed. Never waits.

        The descriptors `fds` go with a single message, and stay the caller's. Raises FrameTooLarge, what the codec
        raises, and OSError where the process can open no descriptors for those that have to wait.
        """
        frame = b"".join(framed(self._codec.encode(message)) for message in messages)
        with self._lock:
            if not self._is_closed:
                self._queue.add(memoryview(frame), fds)
                self._send()

    def post_log(self, message: Out) -> None:
        """Waits a second at most for a server that does not read; then drops what is logged, until it does."""
        with self._lock:
            if self._is_behind and not self._is_dropping:
                self._is_dropping = not self._has_room.wait_for(lambda: not self._is_behind, LOG_PATIENCE)
            if self._is_behind:
                if self._drops is not None:
                    self._drops.add()
                return
            self.post(message)

    def post_slowly(self, message: Out) -> None:
        """Posts a message that must not be dropped: waits up to a second if the server does not read."""
        if self._is_behind:
            self.flush(LOG_PATIENCE)
        self.post(message)

    def flush(self, timeout: float | None = None, unless: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the kernel has all messages, or until `unless` returns True after a nudge."""
        if not self._queue:
            return True
        with self._lock:
            return self._has_room.wait_for(lambda: not self._queue or unless(), timeout)

    def nudge(self) -> None:
        """Wakes all threads that wait for the outbox, so that they check their conditions again."""
        with self._lock:
            self._has_room.notify_all()
            self._call_listeners()

    def on_empty(self, listener: Callable[[], object]) -> None:
        """Calls a function once, in any thread, when all is sent or after a nudge; at once if nothing is unsent."""
        with self._lock:
            self._listeners.append(listener)
            if not self._queue:
                self._call_listeners()

    def send_queued(self) -> None:
        """Sends what is queued; the ferry calls it when the socket takes more."""
        with self._lock:
            self._is_on_ferry = False
            self._send()
            self._has_room.notify_all()
            has_caught_up = self._is_dropping and not self._is_behind
            self._is_dropping = self._is_dropping and not has_caught_up
        if has_caught_up and self._drops is not None:
            self._drops.report()

    def close(self) -> None:
        """Drops what is queued, and every later message."""
        with self._lock:
            self._is_closed = True
            self._queue.close()
            self.nudge()

    def _send(self) -> None:
        while self._queue and not self._is_sending and not self._is_on_ferry:
            self._is_sending = True
            try:
                self._send_what_fits()
            except BlockingIOError:
                self._is_on_ferry = True
                self._ferry.take(self)
            except OSError:  # nobody reads any more; whoever has to know hears of it on the control channel
                self.close()
            finally:
                self._is_sending = False
        if not self._queue:
            self._call_listeners()

    def _send_what_fits(self) -> None:
        while self._queue:
            frame, fds = self._queue.head
            n_sent = descriptors.send(self._socket, frame, fds, _AT_ONCE) if fds else self._socket.send(frame, _AT_ONCE)
            self._queue.advance(n_sent)

    def _call_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class Ferry:
    """Sends queued messages of outboxes in one thread, as soon as their sockets take them. Starts when first needed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._epoll: select.epoll | None = None
        self._outboxes: dict[int, Outbox[object]] = {}

    def take(self, outbox: Outbox[Out]) -> None:
        """Calls `outbox.send_queued` once, when its socket is writable."""
        fd, events = outbox.fileno(), select.EPOLLOUT | select.EPOLLONESHOT
        with self._lock:
            if self._epoll is None:
                self._epoll = select.epoll()
                threading.Thread(target=self._run, args=(self._epoll,), name="corosrv-ferry", daemon=True).start()
            if fd in self._outboxes:
                self._epoll.modify(fd, events)
            else:
                self._outboxes[fd] = outbox  # type: ignore[assignment]  # of any message
                self._epoll.register(fd, events)

    def _run(self, epoll: select.epoll) -> None:
        while True:
            for fd, _ in epoll.poll():
                self._outboxes[fd].send_queued()


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
