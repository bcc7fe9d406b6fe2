"""Receives what one prediction sends: buffers its messages, and makes the worker wait while nobody takes them."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from corosrv.base.errors import ReadTimeout
from corosrv.contracts.jobs.answers import TERMINAL, Answer
from corosrv.contracts.jobs.reader import Reader, Sink

MAX_UNREAD = 1 << 20  # bytes; a message that goes beyond is kept, and no more are read


class PredictReader(Reader[Answer]):
    """Yields a prediction's messages; the terminal one comes once and is the last, whatever happens to the worker.

    The permit has ended when the terminal message can be taken. Leaving the `with` block cancels what is unfinished.
    Belongs to the hub's thread; one greenlet takes.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._unread: list[Answer] = []
        self._n_bytes = 0  # of those
        self.n_received = 0  # bytes of all messages so far
        self._has_ended = False  # the terminal message is there
        self._is_closed = False
        self._is_cancelled = False
        self._has_news = Event()
        self._has_room = Event()
        self._has_room.set()

    @property
    def is_finished(self) -> bool:
        """True once the terminal message was taken or dropped."""
        return self._has_ended and not self._unread

    def take(self, timeout: float | None = None) -> list[Answer]:
        """Returns all unread messages, at least one; an empty list after the terminal one and after close(). Waits.

        Raises ReadTimeout after `timeout` seconds without any; the reader can be used on.
        """
        if not self._unread and not self._has_ended and not self._is_closed:
            self._has_news.clear()
            if not self._has_news.wait(timeout):
                raise ReadTimeout(f"nothing to read for {timeout:g} s")
        return self._empty()

    def _empty(self) -> list[Answer]:
        messages, self._unread = self._unread, []
        self._n_bytes = 0
        self._has_room.set()
        return messages

    def cancel(self) -> None:
        """Asks the prediction to end, with its terminal message. Never waits. Later calls do nothing."""
        if not self._has_ended and not self._is_cancelled:
            self._is_cancelled = True
            self._cancel()

    def close(self) -> None:
        """Cancels, and drops unread and later messages. Later calls do nothing."""
        self.cancel()
        self._is_closed = True
        self._empty()
        self._has_news.set()

    def pump(self, sink: Sink[Answer], timeout: float | None = None) -> None:
        """Hands all unread messages to `sink` until it returns False or the terminal one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without messages.
        """
        while (answers := self.take(timeout)) and sink(answers):
            pass

    # What follows is for whoever feeds the reader.

    def add(self, message: Answer, n_bytes: int) -> None:
        """Adds a message; none may follow a terminal one. Never waits."""
        assert not self._has_ended, f"{message} comes behind the terminal message"
        self._has_ended = isinstance(message, TERMINAL)
        if self._is_closed:
            return
        self._unread.append(message)
        self._n_bytes += n_bytes
        self.n_received += n_bytes
        if self._n_bytes > MAX_UNREAD:
            self._has_room.clear()
        self._has_news.set()

    def wait_for_room(self) -> None:
        """Waits while more than MAX_UNREAD bytes are unread."""
        self._has_room.wait()
