"""The surroundings of user code in every worker process: its import, the control channel, captured prints, the end.

`FILE.py:NAME` and `MODULE:NAME` name an author's code. Its errors become texts here: for clients a line, for logs the
traceback.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, NoReturn

from corosrv.base.errors import CorosrvError, LoadError
from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.messages import Log, ProcessMessage
from corosrv.workers.worker import capture
from corosrv.workers.worker.capture import Capture
from corosrv.workers.worker.child import lifeline
from corosrv.workers.worker.child.control import Control, Ferry
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.printed import Printed
from corosrv.workers.worker.scope import NOWHERE, scope
from corosrv.workers.worker.signatures import shapes
from corosrv.workers.worker.signatures import signature as signatures
from corosrv.workers.worker.signatures.signature import Signature


def module_from_file(path: str) -> ModuleType:
    """Imports a file under its own name. Raises LoadError if it is not there, and what its code raises."""
    if not os.path.isfile(path):
        raise LoadError(f"there is no file {path} (looked in {os.getcwd()})")
    folder, file = os.path.split(os.path.abspath(path))
    # Its neighbours can be imported, as if it had been started as a program.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    stem = file.removesuffix(".py")
    # Under its own name, which pickle goes by, unless that is another module's.
    name = f"_predictor_{stem}" if stem in sys.modules or stem in sys.stdlib_module_names else stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "every .py file has a loader"
    assert spec.loader is not None, "every .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def module_from_name(name: str, advice: str, directory: str = "") -> ModuleType:
    """Imports a module, which may lie in `directory` (empty: the working one).

    Raises LoadError, which ends with `advice`, if there is none, and what its code raises.
    """
    directory = os.path.abspath(directory)
    if directory not in sys.path and not (directory == os.getcwd() and "" in sys.path):
        sys.path.insert(0, directory)
    try:
        spec = importlib.util.find_spec(name)
    except ImportError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # the package is there, and lacks something itself
            raise
        spec = None
    except ValueError:
        spec = None
    if spec is None:
        raise LoadError(f"there is no module {name!r}: {advice}")
    return importlib.import_module(name)


_DEFAULT_NAMES = ("Runner", "Predictor")  # tried where none is given


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor that can be set up and called. Hooks that the author did not write are None."""

    signature: Signature
    call: Callable[..., Any]
    setup: Callable[..., Any] | None = None
    healthcheck: Callable[[], Any] | None = None


def load(reference: str) -> Predictor:
    """Imports and constructs the predictor. Raises LoadError, SignatureError, and what the author's code raises."""
    target = _find(reference)
    signature = signatures.read(target)
    if not inspect.isclass(target):
        return Predictor(signature, target)
    instance = target()
    return Predictor(
        signature,
        getattr(instance, signature.method),
        setup=getattr(instance, "setup", None),
        healthcheck=getattr(instance, "healthcheck", None),
    )


def _find(reference: str) -> Any:
    place, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    if place.endswith(".py"):
        module = module_from_file(place)
    else:
        module = module_from_name(place, "a predictor is named as FILE.py:NAME or MODULE:NAME")
    shapes.register(module)
    if not name:
        name = next((candidate for candidate in _DEFAULT_NAMES if hasattr(module, candidate)), "")
        if not name:
            raise LoadError(
                f"{place} has no {' or '.join(_DEFAULT_NAMES)}: name the class or function, as {place}:NAME"
            )
    try:
        target = getattr(module, name)
    except AttributeError:
        raise LoadError(f"{place} has no class or function {name!r}") from None
    if not callable(target):
        raise LoadError(f"{name!r} in {place} is a {type(target).__name__}, neither a class nor a function")
    return target


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
