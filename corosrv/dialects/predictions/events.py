"""One client that reads a prediction's events: waits for them, and gets an error event when it has missed some."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent
from gevent.hub import get_hub

from corosrv.base.errors import CorosrvError, Misuse, ReadTimeout
from corosrv.contracts.jobs import Reader, Sink
from corosrv.contracts.jobs.reader import take_first
from corosrv.dialects.predictions.history import Cursor, Event, EventPiece, Gap, History

MAX_READERS = 1024  # of one prediction
PING_SECONDS = 15.0

Item = Event | EventPiece


class EventEncoder:
    """Makes a stream of a prediction's events; see corosrv.web.http.sse.Encoder."""

    failure: CorosrvError | None = None  # that a prediction failed is an event like others

    def encode(self, events: list[Item]) -> bytes:
        return b"".join([event.wire for event in events])

    def encode_error(self, error: CorosrvError) -> bytes:
        return Event("error", {"error": str(error), "skipped": 0}).wire

    def close(self) -> None:
        """Does nothing."""


class EventReader(Reader[Item]):
    """Gives a prediction's events up to the last one, in a corosrv.web.http.sse.EventStream. Belongs to the hub's
    thread.

    A reader that falls behind the kept history gets one `error` event and then the stream ends. `on_leave` is called
    once, when the reader is closed, with whether it left by itself: one that fell behind did not.
    """

    def __init__(self, history: History, after_number: int | None, on_leave: Callable[[bool], None]) -> None:
        self._history = history
        self._cursor: Cursor = history.cursor(after_number)
        self._on_leave = on_leave
        self.is_lost = False  # it fell behind the kept history
        self._is_closed = False
        self._sink: Sink[Item] | None = None  # of whoever waits
        self._greenlet: Any = None

    @property
    def is_finished(self) -> bool:
        """True if no more events will come."""
        return self._is_closed or self.is_lost or self._cursor.is_at_end

    def take(self, timeout: float | None = None) -> list[Item]:
        """Returns unread events, at least one; an empty list once the last one was taken. Waits.

        Raises ReadTimeout after `timeout` seconds without any.
        """
        return take_first(self.pump, timeout)

    def pump(self, sink: Sink[Item], timeout: float | None = None) -> None:
        """Hands unread events to `sink` whenever there are some, until it returns False or the last one was taken.

        Waits; `sink` must not. Raises what it raises, and ReadTimeout after `timeout` seconds without events.
        """
        if self._greenlet is not None:
            raise Misuse("another greenlet reads these events already; give each greenlet a reader of its own")
        if self._hand_over(sink):
            self._wait(sink, timeout)

    def _hand_over(self, sink: Sink[Item]) -> bool:
        """Hands unread events over; returns whether the sink wants more and more may come."""
        while events := self._unread():
            if not sink(events):
                return False
        return not self.is_finished

    def _unread(self) -> list[Item]:
        if self._is_closed or self.is_lost:
            return []
        try:
            return self._cursor.take()
        except Gap as gap:
            self.is_lost = True
            error = "SSE stream replay truncated: this reader was behind the events that are kept"
            return [Event("error", {"error": error, "skipped": gap.n_skipped})]

    def _wait(self, sink: Sink[Item], timeout: float | None) -> None:
        self._sink = sink
        self._greenlet = gevent.getcurrent()
        silence = _SilenceTimer(timeout, self._on_silence)
        self._silence = silence
        self._history.park(self._on_event)
        try:
            get_hub().switch()
        finally:
            self._history.unpark(self._on_event)
            silence.close()
            self._greenlet = self._sink = None

    def _on_event(self) -> None:
        """Schedules the delivery in the hub, so that an event with many readers costs its history little."""
        get_hub().loop.run_callback(self._deliver)

    def _deliver(self) -> None:
        """Hands events over in the hub; wakes the greenlet only if the sink wants no more or none will come."""
        if self._sink is None or self._greenlet is None:
            return
        self._silence.restart()
        try:
            wants_more = self._hand_over(self._sink)
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
        """Closes the reader: the client is gone. Never waits."""
        self.close()

    def close(self) -> None:
        """Stops reading and calls `on_leave`. Later calls do nothing."""
        if self._is_closed:
            return
        has_left = not self.is_finished
        self._is_closed = True
        self._cursor.close()
        if self._greenlet is not None:
            get_hub().loop.run_callback(self._deliver)
        self._on_leave(has_left)


class _SilenceTimer:
    """Calls `on_end` in the hub when nothing restarted it for `seconds`; never if that is None."""

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
        seconds_left = self._since + self._seconds - time.monotonic()
        if seconds_left > 0:
            self._arm(seconds_left)
        else:
            self.close()
            self._on_end(self._seconds)

    def close(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()
