"""Finds what holds a hub: a greenlet that uses the processor for long without letting others run.

Processor time of the hub's thread counts, without the garbage collector's and without the pauses of a virtual machine,
so that a busy machine makes no difference. In the process of the tests the greenlets that answer a request of a Flask
application are watched; in the workers of gunicorn that tests start all greenlets but the main one, which starts the
worker (see watched_start/sitecustomize.py).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import greenlet

HELD = 0.15  # seconds of processor time: 0.1, and half as much again for what runs beside it on the same core
TOLD_IN = "COROSRV_TESTS_HUB_WATCH"  # the variable that names the file which watched workers write findings to
STARTED_BY = Path(__file__).parent / "watched_start"  # in PYTHONPATH: watches the workers of gunicorn

# What may take longer, by the name of the function, and why.
ALLOWED = {
    "create_app": "made once, before the worker serves anybody",
    "<module>": "an import, done once",
    "_describe_routes": "the API document, made once: in a thread, but where there is no hub",
}

_TICK = 0.01  # seconds of processor time between two looks at the stack, while there may be something to see
_FRAMES = 40
_THREAD_CPU_CLOCK, _TO_A_THREAD = 3, 4  # CLOCK_THREAD_CPUTIME_ID, SIGEV_THREAD_ID


class HubWatch:
    """Watches the calling thread, which has to be the main one, from start() to stop()."""

    def __init__(self, counts: Callable[[Any], bool], tell: Callable[[str], None]) -> None:
        """`counts`: whether a greenlet is watched. `tell` is given each finding: how long, and where."""
        self._counts = counts
        self._tell = tell
        self._began = 0.0
        self._collected = 0.0  # seconds of the garbage collector since then
        self._collection_began = 0.0
        self._seen = ""
        self._ticks: _Ticks | None = None
        self._turns: Any = None  # tells when the hub has polled its sockets, and others could run

    def start(self) -> None:
        self.begin()
        gc.callbacks.append(self._on_collection)
        self._ticks = _Ticks(self._on_tick)
        greenlet.settrace(self._on_switch)

    def stop(self) -> None:
        greenlet.settrace(None)
        if self._turns is not None:
            self._turns.close()
        gc.callbacks.remove(self._on_collection)
        if self._ticks is not None:
            self._ticks.stop()

    def begin(self) -> None:
        """Counts from here."""
        self._seen = ""
        self._collected = 0.0
        if self._ticks is not None:
            self._ticks.forget()
        self._began = time.thread_time()

    def end(self, held_by: Any) -> None:
        """Tells of the greenlet that has run so far if it ran for long, and counts from here."""
        held = time.thread_time() - self._began - self._collected
        if held > HELD and self._ticks is not None:
            held = min(held, self._ticks.seconds())
        if held > HELD and self._counts(held_by) and not any(f", in {name}\n" in self._seen for name in ALLOWED):
            place = self._seen or repr(held_by)
            self._tell(f"the hub was held for {1000 * held:.0f} ms of processor time, in\n{place}\n")
        self.begin()

    def _on_switch(self, event: str, greenlets: tuple[Any, Any]) -> None:
        self.end(greenlets[0])
        if self._turns is None and type(greenlets[1]).__name__ == "Hub":
            hub = greenlets[1]
            self._turns = hub.loop.prepare(ref=False)
            self._turns.start(self.end, hub)

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        if self._ticks is not None:
            self._ticks.on_tick()
        if not self._seen and time.thread_time() - self._began - self._collected > HELD / 2:
            self._seen = "".join(traceback.format_stack(frame, limit=_FRAMES))

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collection_began


class _Ticks:
    """Calls a function in the main thread whenever it has used some more of the processor: never while it waits.

    Counts the ticks as well, also those in a long call of C. While a host pauses its virtual machine, to find memory
    for it, the processor time of the guest jumps, and all ticks that it jumps over come as one.
    """

    def __init__(self, on_tick: Callable[[int, FrameType | None], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        self._read_end, self._write_end = os.pipe()  # a byte for each tick, written when it comes
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._has_bytes = False
        signal.signal(signal.SIGPROF, on_tick)
        signal.siginterrupt(signal.SIGPROF, False)
        self.on_tick()
        # struct sigevent: a value, the signal, how it is sent, and to which thread.
        event = (ctypes.c_int * 16)(0, 0, signal.SIGPROF, _TO_A_THREAD, _thread_id())
        if self._libc.timer_create(_THREAD_CPU_CLOCK, event, ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "no timer")
        self._set(_TICK)

    def on_tick(self) -> None:
        self._has_bytes = True
        signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)  # gunicorn's worker has set its own meanwhile

    def seconds(self) -> float:
        """Returns the processor time that the ticks since forget() speak for, at most."""
        return (self._read() + 1) * _TICK

    def forget(self) -> None:
        """Counts from here."""
        if self._has_bytes:
            self._has_bytes = False
            self._read()

    def _read(self) -> int:
        try:
            return os.read(self._read_end, 1 << 16).count(signal.SIGPROF)
        except BlockingIOError:
            return 0

    def _set(self, seconds: float) -> None:
        each = (0, int(seconds * 1e9))
        self._libc.timer_settime(self._timer, 0, (ctypes.c_long * 4)(*each, *each), None)

    def stop(self) -> None:
        self._libc.timer_delete(self._timer)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)  # one may be under way
        signal.set_wakeup_fd(-1)
        os.close(self._read_end)
        os.close(self._write_end)


def _thread_id() -> int:
    from _thread import get_native_id

    return get_native_id()


# In the process of the tests

_found: list[str] = []
_files: dict[Path, int] = {}  # of watched workers, and how much of each has been read


def watch_requests() -> HubWatch:
    """Starts to watch the greenlets of this process that answer requests of Flask applications."""
    import flask

    answering: set[Any] = set()
    watch = HubWatch(answering.__contains__, _found.append)
    answer = flask.Flask.wsgi_app

    def watched(app: flask.Flask, environ: Any, start_response: Any) -> Any:
        current = greenlet.getcurrent()
        if current in answering:  # an application in another
            return answer(app, environ, start_response)
        answering.add(current)
        watch.begin()
        try:
            return answer(app, environ, start_response)
        finally:
            watch.end(current)
            answering.discard(current)

    flask.Flask.wsgi_app = watched  # type: ignore[method-assign]
    watch.start()
    return watch


def of_server(file: Path) -> dict[str, str]:
    """Returns the variables of a server whose workers are to be watched; what is found is written to `file`."""
    _files[file] = 0
    paths = [str(STARTED_BY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {TOLD_IN: str(file), "PYTHONPATH": os.pathsep.join(paths)}


def server_ended(file: Path) -> None:
    """Looks at a server's findings for the last time."""
    _read(file)
    _files.pop(file, None)


def findings() -> list[str]:
    """Returns what was found since the last call."""
    for file in _files:
        _read(file)
    found = _found.copy()
    _found.clear()
    return found


def _read(file: Path) -> None:
    if file in _files and file.exists() and file.stat().st_size > _files[file]:
        written = file.read_bytes()
        _found.append(written[_files[file] :].decode("utf-8", "replace"))
        _files[file] = len(written)


# In a worker of gunicorn


def watch_worker(file: str) -> None:
    """Starts to watch all greenlets of this process but the main one."""

    def tell(finding: str) -> None:
        with open(file, "a", encoding="utf-8") as told:
            told.write(f"{finding}\n")

    watch = HubWatch(lambda held_by: held_by.parent is not None, tell)
    watch.start()
    atexit.register(watch.stop)  # or the timer's signal would kill a process that is ending, and hide its status
