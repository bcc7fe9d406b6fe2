"""Shares one lane among threads: the slot's, which waits for calls, and those that wait for what a handler asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from corosrv.base.errors import CorosrvError
from corosrv.workers.wire.calls import RunCall
from corosrv.workers.worker.child.apps.app_lane import AppLane
from corosrv.workers.worker.child.apps.lane_asks import AskAnswer, LaneAsks, OpenAsk

Arrival = tuple[RunCall, tuple[int, ...]]  # with its descriptors


class LaneMail:
    """Receives the messages of a lane. Whichever thread waits first reads for all; no thread is kept for that."""

    def __init__(self, lane: AppLane, asks: LaneAsks) -> None:
        self._lane = lane
        self._asks = asks
        self._calls: deque[Arrival] = deque()
        self._has_reader = False
        self._has_ended = False
        self._fault: CorosrvError | None = None
        self._changed = threading.Condition()

    def next_call(self) -> Arrival | None:
        """Returns the next call; None when no more come. Waits. Raises BadFrame, ProtocolError and InvalidTensor."""
        self._wait_until(lambda: bool(self._calls))
        if self._calls:
            return self._calls.popleft()
        if self._fault is not None:
            raise self._fault
        return None

    def next_answer(self, ask: OpenAsk) -> AskAnswer | None:
        """Returns the next answer to an ask; None once its call or the lane is over. Waits."""
        self._wait_until(lambda: bool(ask.answers) or ask.is_over)
        return self._asks.take(ask) if ask.answers else None

    def wake(self) -> None:
        """Lets all threads that wait check again what they wait for."""
        with self._changed:
            self._changed.notify_all()

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Waits until it is so, or the lane has ended."""
        with self._changed:
            while not is_ready() and not self._has_ended:
                if self._has_reader:
                    self._changed.wait()
                else:
                    self._read_for_all()

    def _read_for_all(self) -> None:
        self._has_reader = True
        self._changed.release()
        try:
            self._read()
        except CorosrvError as fault:
            self._fault = fault
            self._has_ended = True
        finally:
            self._changed.acquire()
            self._has_reader = False
            self._changed.notify_all()

    def _read(self) -> None:
        message = self._lane.receive()
        if message is None:
            self._has_ended = True
        elif isinstance(message, RunCall):
            self._calls.append((message, self._lane.take_fds()))
        else:
            self._asks.deliver(message, self._lane.take_fds())
