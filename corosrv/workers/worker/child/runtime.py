"""Holds what runs around user code in every worker process: the control channel, the capture of prints, the end."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, NoReturn

from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.process_messages import Log, ProcessMessage
from corosrv.workers.worker.child import lifeline
from corosrv.workers.worker.child.control import Control
from corosrv.workers.worker.child.forked import Fork
from corosrv.workers.worker.child.outbox import Ferry
from corosrv.workers.worker.child.tracebacks import trace
from corosrv.workers.worker.printing import threads
from corosrv.workers.worker.printing.capture import Capture
from corosrv.workers.worker.printing.printed import Printed
from corosrv.workers.worker.scope import NOWHERE, scope

FAREWELL = 1.0  # seconds that the author's exit handlers may take, and that the last messages may


class WorkerRuntime(Generic[Out, In]):
    """Owns the control channel and the capture of one worker process. Made in the main thread."""

    def __init__(
        self,
        control_fd: int,
        lifeline_fd: int,
        codec: Codec[Out | ProcessMessage, In],
        cancel_guard: AbstractContextManager[None],
    ) -> None:
        """`cancel_guard`: no cancel interrupts the main thread within it."""
        self.ferry = Ferry()
        self.control: Control[Out, In] = Control(control_fd, codec, self.ferry)
        self.server_log = Printed(lambda source, text: self.control.outbox.post_log(Log(source, text)))
        self.fork = Fork()
        self.capture = Capture(self.server_log, cancel_guard)
        self._lifeline_fd = lifeline_fd

    def install(self, let_go: Callable[[], None]) -> None:
        """Begins the capture and hangs on to the server's life. `let_go` is called in forked copies of the process."""
        lifeline.hang_on(self._lifeline_fd)
        self.capture.install()
        threads.inherit_predictions()

        def let_go_of_channels() -> None:
            scope.set(NOWHERE)
            self.control.let_go()
            let_go()

        os.register_at_fork(after_in_child=let_go_of_channels)

    def fail(self, error: BaseException, message: Out) -> NoReturn:
        """Ends the process because it cannot start: the server hears why, and what was printed."""
        self.capture.flush()
        self.server_log.write("stderr", trace(error).encode("utf-8", "replace"))
        self.control.outbox.post(message)
        self.control.outbox.flush(FAREWELL)
        os._exit(1)

    def leave(self, message: Out) -> NoReturn:
        """Lets the author's exit handlers run, and ends the process with a last message. Waits for no thread."""
        limit = threading.Timer(FAREWELL, os._exit, [0])
        limit.daemon = True
        limit.start()
        try:
            atexit._run_exitfuncs()
        finally:
            self.leave_at_once(message)

    def leave_at_once(self, message: Out) -> NoReturn:
        """Ends the process with a last message. Any thread."""
        self.capture.flush()
        self.control.outbox.post(message)
        self.control.outbox.flush(FAREWELL)
        os._exit(0)
