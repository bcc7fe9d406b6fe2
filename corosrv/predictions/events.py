"""One client that reads a prediction's events: waits for them, and is told when it has missed some."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.hub import get_hub

from corosrv.errors import CorosrvError, Misuse, ReadTimeout
from corosrv.jobs import Reader, Sink
from corosrv.predictions.history import Cursor, Event, Gap, History

MAX_READERS = 1024  # of one prediction
PING_SECONDS = 15.0


class EventEncoder:
    """Makes a stream of a prediction's events; see corosrv.http.sse.Encoder."""

    failure: CorosrvError | None = None  # that a prediction failed is an event like others

    def encode(self, events: list[Event]) -> bytes:
        return b"".join([event.wire for event in events])

    def encode_error(self, error: CorosrvError) -> bytes:
        return Event("error", {"error": str(error), "skipped": 0}).wire

    def close(self) -> None:
        """Does nothing."""


class EventReader(Reader[Event]):
    """Gives a prediction's events up to the last one, in a corosrv.http.sse.EventStream. Belongs to the hub's thread.

    A reader that falls behind the kept history gets one `error` event and then the stream ends. `on_leave` is called
    once, when the reader is closed, with whether it left by itself: one that fell behind did not.
    """

    def __init__(self, history: History, after: int | None, on_leave: Callable[[bool], None]) -> None:
        self._history = history
        self._cursor: Cursor = history.cursor(after)
        self._on_leave = on_leave
        self._is_lost = False
        self._is_closed = False
        self._sink: Sink[Event] | None = None  # of whoever waits
        self._greenlet: Any = None

    @property
    def is_finished(self) -> bool:
        """Whether no more events will come."""
        return self._is_closed or self._is_lost or self._cursor.is_at_end

    def take(self, timeout: float | None = None) -> list[Event]:
        """Unread events, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """
        taken: list[Event] = []

        def keep(events: list[Event]) -> bool:
            taken.extend(events)
            return False

        self.pump(keep, timeout)
        return taken

    def pump(self, sink: Sink[Event], timeout: float | None = None) -> None:
        """Hands unread events to `sink` whenever there are some, until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without events.
        """
        if self._greenlet is not None:
            raise Misuse("another greenlet reads these events already; give each greenlet a reader of its own")
        if self._pass_on(sink):
            self._wait(sink, timeout)

    def _pass_on(self, sink: Sink[Event]) -> bool:
        """Hands over what there is; True while there may be more, and it is wanted."""
        while events := self._unread():
            if not sink(events):
                return False
        return not self.is_finished

    def _unread(self) -> list[Event]:
        if self._is_closed or self._is_lost:
            return []
        try:
            return self._cursor.take()
        except Gap as gap:
            self._is_lost = True
            error = "SSE stream replay truncated: this reader was behind the events that are kept"
            return [Event("error", {"error": error, "skipped": gap.n_skipped})]

    def _wait(self, sink: Sink[Event], timeout: float | None) -> None:
        self._sink = sink
        self._greenlet = gevent.getcurrent()
        silence = _Silence(timeout, self._on_silence)
        self._silence = silence
        self._history.park(self._on_event)
        try:
            get_hub().switch()
        finally:
            self._history.unpark(self._on_event)
            silence.close()
            self._greenlet = self._sink = None

    def _on_event(self) -> None:
        """Called by the history. What has to be done is done in turn with others, so that many cost it nothing."""
        get_hub().loop.run_callback(self._look)

    def _look(self) -> None:
        """In the hub: hands events over without waking the greenlet, as long as that can be."""
        if self._sink is None or self._greenlet is None:
            return
        self._silence.restart()
        try:
            wants_more = self._pass_on(self._sink)
        except BaseException as error:  # raised where the reader waits, not in the hub
            self._greenlet.throw(error)
            return
        if wants_more:
            self._history.park(self._on_event)
        else:
            self._greenlet.switch()

    def _on_silence(self, seconds: float) -> None:
        if self._greenlet is not None:
            self._greenlet.throw(ReadTimeout(f"no event for {seconds:g} s"))

    def cancel(self) -> None:
        """The client is gone. Never waits."""
        self.close()

    def close(self) -> None:
        """Leaves. Twice is harmless."""
        if self._is_closed:
            return
        has_left = not self.is_finished
        self._is_closed = True
        self._cursor.close()
        if self._greenlet is not None:
            get_hub().loop.run_callback(self._look)
        self._on_leave(has_left)


class _Silence:
    """Calls `on_end` in the hub when nothing restarted it for that long. Never, where `seconds` is None."""

    def __init__(self, seconds: float | None, on_end: Callable[[float], None]) -> None:
        self._seconds = seconds or 0.0
        self._on_end = on_end
        self._since = time.monotonic()
        self._timer: Any = None
        if seconds is not None:
            self._arm(seconds)

    def restart(self) -> None:
        # The timer stays as it is: one that fires too early sleeps for the rest, which is cheaper than to move it.
        self._since = time.monotonic()

    def _arm(self, seconds: float) -> None:
        self.close()
        self._timer = get_hub().loop.timer(seconds)
        self._timer.start(self._on_timer)

    def _on_timer(self) -> None:
        left = self._since + self._seconds - time.monotonic()
        if left > 0:
            self._arm(left)
        else:
            self.close()
            self._on_end(self._seconds)

    def close(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()
