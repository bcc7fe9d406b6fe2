"""Captures what a worker prints, and attributes it to the prediction or call that printed it.

sys.stdout and sys.stderr are replaced by streams that know the current context. What child processes and C code print
comes through pipes at descriptors 1 and 2. Threads that a prediction starts belong to it, as its tasks do. Those of a
pool outlive it: each call there belongs to the prediction that submitted it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import io
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures.thread import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any, TypeVar

from corosrv.workers.worker.printed import Printed, place
from corosrv.workers.worker.scope import scope


class Stream(io.TextIOBase):
    """Any thread may write. Flushing sends a line that has no end yet.

    In a forked child nothing of the worker's can be used; there it writes to the descriptor, and what comes out at its
    other end is captured as that of any other program.
    """

    encoding = "utf-8"
    errors = "replace"
    mode = "w"
    line_buffering = True

    def __init__(self, source: str, fd: int, server_log: Printed, cancel_guard: AbstractContextManager[None]) -> None:
        """`server_log`: gets text outside predictions; `cancel_guard`: no cancel interrupts within it."""
        self.name = f"<{source}>"
        self._source = source
        self._fd = fd
        self._server_log = server_log
        self._cancel_guard = cancel_guard
        self._is_forked = False
        self.buffer = _Bytes(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.write_bytes(text.encode("utf-8", "replace"))
        return len(text)

    def writelines(self, lines: Iterable[Any]) -> None:
        self.write("".join(lines))

    def write_bytes(self, data: bytes) -> None:
        if self._is_forked:
            while data:
                data = data[os.write(self._fd, data) :]
            return
        with self._cancel_guard:
            (place.get() or self._server_log).write(self._source, data)

    def flush(self) -> None:
        if not self._is_forked:
            with self._cancel_guard:
                (place.get() or self._server_log).flush(self._source)

    def become_plain(self) -> None:
        self._is_forked = True

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **options: object) -> None:
        """Changes nothing: UTF-8 goes out, by lines."""

    def close(self) -> None:
        """Stays open, for others."""


class _Bytes(io.RawIOBase):
    """A Stream's `buffer`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.raw = self

    def write(self, data: Any) -> int:
        copy = bytes(data)
        self._stream.write_bytes(copy)
        return len(copy)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Stays open, for others."""


T = TypeVar("T")


def inherit_predictions() -> None:
    """Makes all later threads, and calls in thread pools, belong to the prediction that starts them."""
    start = threading.Thread.start
    submit: Callable[..., Any] = ThreadPoolExecutor.submit

    @functools.wraps(start)
    def start_as_part(self: threading.Thread) -> None:
        if place.get() is not None:
            # On the thread itself: `run` may be overridden, and is looked up when the thread has started.
            self.run = _part(self.run, self)  # type: ignore[method-assign]
        start(self)

    @functools.wraps(submit)
    def submit_as_part(self: ThreadPoolExecutor, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _part(call), *args, **kwargs)

    threading.Thread.start = start_as_part  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submit_as_part  # type: ignore[assignment, method-assign]


def _part(call: Callable[..., T], thread: threading.Thread | None = None) -> Callable[..., T]:
    """Binds a call to what the current context belongs to, whichever thread makes it."""
    its_scope, printed = scope.get(), place.get()

    def enter() -> None:
        scope.set(its_scope)
        place.set(printed)

    def call_as_part(*args: Any, **kwargs: Any) -> T:
        if thread is not None:
            del thread.run  # or it would hold itself for ever
            enter()  # for good: what is printed of an error that ends the thread is part of it, too
            return call(*args, **kwargs)
        context = copy_context()
        context.run(enter)
        return context.run(call, *args, **kwargs)

    return call_as_part


_PIPE_SIZE = 1 << 20  # bytes; the most that the kernel allows by default
_FDS = {"stdout": 1, "stderr": 2}
_C_BUFFER = 1 << 13  # bytes


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


# C's poll(2) by a call that keeps the interpreter, which select.poll would give away and have to wait for.
_poll_now: Callable[..., int] = ctypes.PyDLL(None).poll


class Capture:
    """Captures all printed text and attributes it to the right prediction. Made once, in the main thread.

    Text that is written to the descriptors themselves belongs to the running prediction if exactly one runs. The pipes
    are emptied whenever one begins or ends, so text that was written before belongs to those that ran then.
    """

    def __init__(self, server_log: Printed, cancel_guard: AbstractContextManager[None]) -> None:
        self._server_log = server_log
        self._running: set[Printed] = set()
        self._lock = threading.RLock()
        self._streams = {source: Stream(source, fd, server_log, cancel_guard) for source, fd in _FDS.items()}
        self._polled = (_PollFd * 0)()  # the pipes
        self._pipes: dict[int, str] = {}
        self._flush_c: Callable[[], object] = _line_buffered_c_output()

    def install(self) -> None:
        """Starts the capture. The worker's own log goes where standard error went before."""
        _log_to(os.dup(2))
        for original in (sys.__stdout__, sys.__stderr__):
            if isinstance(original, io.TextIOWrapper):
                original.reconfigure(line_buffering=True, errors="replace")
        for source, fd in _FDS.items():
            self._pipes[_pipe_into(fd)] = source
        self._polled = (_PollFd * len(self._pipes))(*[_PollFd(pipe, select.POLLIN) for pipe in self._pipes])
        sys.stdout, sys.stderr = self._streams["stdout"], self._streams["stderr"]
        for stream in self._streams.values():
            os.register_at_fork(after_in_child=stream.become_plain)
        for pipe, source in self._pipes.items():
            threading.Thread(target=self._read, args=(pipe,), name=f"corosrv-{source}", daemon=True).start()

    def begin(self, printed: Printed) -> None:
        # Not under the lock: C code may wait with its own lock held until a pipe is emptied.
        self._flush_c()
        with self._lock:
            self._empty_pipes()
            self._running.add(printed)

    def end(self, printed: Printed) -> None:
        self._flush_c()
        with self._lock:
            self._empty_pipes()
            self._running.discard(printed)

    def flush(self) -> None:
        """Sends text that was printed outside predictions, also an unfinished line."""
        self._flush_c()
        with self._lock:
            self._empty_pipes()
        for source in _FDS:
            self._server_log.flush(source)

    def _empty_pipes(self) -> None:
        if _poll_now(self._polled, ctypes.c_ulong(len(self._polled)), 0) <= 0:
            return
        for polled in self._polled:
            if not polled.revents:
                continue
            # One read takes all that a pipe can hold, so a child that never stops printing does not keep us here.
            data, source = os.read(polled.fd, _PIPE_SIZE), self._pipes[polled.fd]
            if not data:  # user code has closed the descriptor
                polled.fd = -1  # which poll skips
            printed = next(iter(self._running)) if len(self._running) == 1 else self._server_log
            printed.write(source, data)

    def _read(self, pipe: int) -> None:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while not any(event & select.POLLHUP for _, event in poll.poll()):
            with self._lock:
                self._empty_pipes()


def _pipe_into(fd: int) -> int:
    """Makes a descriptor write to a pipe, for child processes, too; returns the reading end."""
    end, mouth = os.pipe()
    with contextlib.suppress(OSError):  # this user has many pipes already
        fcntl.fcntl(mouth, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_SIZE)
    os.dup2(mouth, fd, inheritable=True)
    os.close(mouth)
    return end


def _log_to(fd: int) -> None:
    """Makes the package's loggers write to this descriptor, whatever user code does to logging."""
    handler = logging.StreamHandler(os.fdopen(fd, "w"))
    handler.setFormatter(logging.Formatter("%(asctime)s [%(process)d] [%(levelname)s] %(message)s"))
    logger = logging.getLogger("corosrv")
    logger.addHandler(handler)
    logger.propagate = False


def _line_buffered_c_output() -> Callable[[], object]:
    """Makes C's stdout write whole lines even to a pipe. Returns a function that writes the rest."""
    libc = ctypes.CDLL(None)
    try:
        stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    except ValueError:  # a C library that calls it otherwise
        return lambda: None
    line_buffered = 1  # _IOLBF
    # A buffer of its own: with PYTHONUNBUFFERED the stream has one of a single byte, and would go on with that. It
    # stays for ever, as the stream is flushed when Python is gone.
    libc.malloc.restype = ctypes.c_void_p
    buffer = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(_C_BUFFER)))
    libc.setvbuf(stdout, buffer, line_buffered, ctypes.c_size_t(_C_BUFFER))
    # fflush may wait until a pipe is emptied, so it leaves the interpreter to others; whether it is needed does not.
    n_unwritten = getattr(ctypes.PyDLL(None), "__fpending", None)
    if n_unwritten is None:  # neither glibc nor musl
        return lambda: libc.fflush(stdout)
    n_unwritten.restype = ctypes.c_size_t
    return lambda: n_unwritten(stdout) and libc.fflush(stdout)
