"""The surroundings of user code in every worker process: the control channel, the capture of prints, the end.

Errors of user code become texts here: for clients a line, for logs the traceback.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, NoReturn

from corosrv.base.errors import CorosrvError
from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.messages import Log, ProcessMessage
from corosrv.workers.worker.child import lifeline
from corosrv.workers.worker.child.control import Control, Ferry
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.printing import capture
from corosrv.workers.worker.printing.capture import Capture
from corosrv.workers.worker.printing.printed import Printed
from corosrv.workers.worker.scope import NOWHERE, scope

MAX_ERROR = 100_000  # characters of a message, and of a traceback
_OURS = ("corosrv.", "importlib.", "asyncio.")  # modules whose frames are of no use to an author


def describe(error: BaseException) -> str:
    """Formats an error as `TypeName: message`, valid in JSON and short enough for a frame."""
    message = message_of(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text.encode("utf-8", "replace").decode()


def message_of(error: BaseException) -> str:
    """Returns the message of an error, valid as UTF-8 and short enough for a frame."""
    try:
        message = str(error)
    except Exception as another:  # the author's own __str__
        message = f"<{type(another).__name__} in __str__>"
    if len(message) > MAX_ERROR:
        message = f"{message[:MAX_ERROR]} [TRUNCATED]"
    return message.encode("utf-8", "replace").decode()


def trace(error: BaseException) -> str:
    """Formats the traceback from the first frame of user code on; of an error of ours, the message, which says all."""
    return f"{describe(error)}\n" if isinstance(error, CorosrvError) else trace_frames(error)


def trace_frames(error: BaseException) -> str:
    """Formats the traceback from the first frame of user code on."""
    import traceback  # not at start: most predictions go well

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(_OURS):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames))
    text = text if len(text) <= MAX_ERROR else f"{text[:MAX_ERROR]} [TRUNCATED]\n"
    return text.encode("utf-8", "replace").decode()


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
        capture.inherit_predictions()

        def let_go_of_channels() -> None:
            scope.set(NOWHERE)
            self.control.let_go()
            let_go()

        os.register_at_fork(after_in_child=let_go_of_channels)

    def fail(self, error: BaseException, message: Out) -> NoReturn:
        """Ends the process because it cannot start, after reporting why, and what was printed, to the server."""
        self.capture.flush()
        self.server_log.write("stderr", trace(error).encode("utf-8", "replace"))
        self.control.outbox.post(message)
        self.control.outbox.flush(FAREWELL)
        os._exit(1)

    def leave(self, message: Out) -> NoReturn:
        """Runs the author's exit handlers, and ends the process with a last message. Waits for no thread."""
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
