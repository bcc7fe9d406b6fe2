"""Cancels: which prediction each is meant for, and how one gets into user code that runs in the main thread.

A cancel comes over another channel than the prediction, so it may be there first, or when all is over. It is bound to
the prediction, and user code hears of it at most once: while it runs, and never on behalf of another prediction.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

from corosrv.workers.worker.predictor import CancelationException

T = TypeVar("T")

# Seconds between two signals of one cancel: the first pause, which doubles, and the longest.
FIRST_PAUSE = 0.001
MAX_PAUSE = 0.5


class Cancellable(Protocol):
    """A prediction, as far as cancels are concerned."""

    id: str
    is_cancelled: bool  # somebody asked for it, before the end
    is_told: bool  # user code has heard of it

    def on_cancel(self) -> None:
        """Handles a cancel of the prediction: called once at most, in any thread, perhaps after its end."""


class _Lane:
    """One slot's share of Cancels."""

    def __init__(self) -> None:
        self.running: Cancellable | None = None
        self.ended: str | None = None  # the id of the prediction that ran last
        self.early: str | None = None  # cancelled, and not here yet


class Cancels:
    """Matches cancels with predictions by slot and id. Any thread."""

    def __init__(self, has_mail: Callable[[int], bool] = lambda slot: False) -> None:
        """`has_mail(slot)`: a message waits unread in its channel."""
        self._has_mail = has_mail
        self._lanes: dict[int, _Lane] = {}
        self._lock = threading.RLock()

    def begin(self, slot: int, prediction: Cancellable) -> None:
        """Makes the prediction cancellable; a cancel that came before counts at once."""
        with self._lock:
            lane = self._lanes.setdefault(slot, _Lane())
            lane.running = prediction
            prediction.is_cancelled = lane.early == prediction.id
            lane.early = None

    def end(self, slot: int) -> bool:
        """Ends the time for cancels. Returns whether the prediction was cancelled."""
        with self._lock:
            lane = self._lanes[slot]
            assert lane.running is not None, "a prediction ends that has not begun"
            prediction, lane.running = lane.running, None
            lane.ended = prediction.id
            return prediction.is_cancelled

    def cancel(self, slot: int, id: str) -> None:
        with self._lock:
            lane = self._lanes.setdefault(slot, _Lane())
            running = lane.running
            if running is None or running.id != id:
                # The server sends a prediction before its cancel, so one that ended is not the one that comes next,
                # unless the same id stands in the channel once more.
                if lane.ended != id or self._has_mail(slot):
                    lane.early = id
                return
            if running.is_cancelled:
                return
            running.is_cancelled = True
        running.on_cancel()


class Interrupts:
    """Raises CancelationException in the main thread: only while user code of the cancelled prediction runs there.

    PyThreadState_SetAsyncExc cannot be aimed: by the time that the thread gets the exception it may be elsewhere. A
    signal handler runs in the main thread itself, between two bytecodes, and sees where it is. The signal is a real
    one, so that Python's own waits (time.sleep, subprocess.run, Event.wait) end, too.
    """

    SIGNAL = cast(signal.Signals, signal.SIGRTMAX - 3)  # any that nobody else handles

    def __init__(self) -> None:
        self._running: Cancellable | None = None  # whose user code runs; changed by the main thread alone
        self._n_held = 0
        self._main = threading.main_thread().ident
        self._handler = self._on_signal
        self._set_handler = signal.signal

    def install(self) -> None:
        """Handles the signal, whatever handlers user code sets. Call it in the main thread."""
        self._set_handler(self.SIGNAL, self._handler)
        signal.signal = self._signal_for_user_code  # type: ignore[assignment]  # positional arguments, as C has them
        self._report_unraisable = sys.unraisablehook
        sys.unraisablehook = self._on_unraisable

    def _signal_for_user_code(self, number: int, handler: Any) -> Any:
        """Calls signal.signal, but not for our signal: code that resets all handlers must not cost the cancels."""
        return self._handler if number == self.SIGNAL else self._set_handler(number, handler)

    def interrupt(self) -> None:
        """Interrupts the prediction in the main thread, which has just been cancelled. Any thread."""
        prediction = self._running
        if prediction is not None:  # else it is between two calls of user code, and the next one raises
            self._strike()
            threading.Thread(target=self._insist, args=(prediction,), name="corosrv-cancel", daemon=True).start()

    def _strike(self) -> None:
        _thread.interrupt_main(self.SIGNAL)  # heard at the next bytecode, also where user code blocks all signals
        # What is not caught would end the process; native code may have reset the handler.
        if self._main is not None and is_caught(self.SIGNAL):
            signal.pthread_kill(self._main, self.SIGNAL)

    def _insist(self, prediction: Cancellable) -> None:
        """Repeats the signal: one that arrives just before a system call does not interrupt that call."""
        pause = FIRST_PAUSE
        while True:
            time.sleep(pause)
            if self._running is not prediction or prediction.is_told:
                return
            self._strike()
            pause = min(2 * pause, MAX_PAUSE)

    def call(self, prediction: Cancellable, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls user code, in the main thread. Raises CancelationException at once where it has to.

        A cancel that comes as `function` returns may cost its value; `prediction.is_cancelled` then tells why.
        """
        self._running = prediction
        if signal.getsignal(self.SIGNAL) != self._handler:  # user code went around signal.signal
            self._set_handler(self.SIGNAL, self._handler)
        try:
            self._raise_if_due()
            return function(*args, **kwargs)
        finally:
            # Should the exception come within this block, it was due once, and `is_told` keeps it from coming again.
            self._running = None

    def __enter__(self) -> None:
        """Delays interrupts of the main thread to the end of the block: our code that user code calls completes."""
        if _thread.get_ident() == self._main:
            self._n_held += 1

    def __exit__(self, *exc_info: object) -> None:
        if _thread.get_ident() == self._main:
            self._n_held -= 1
            self._raise_if_due()

    def _raise_if_due(self) -> None:
        prediction = self._running
        if prediction is None or not prediction.is_cancelled or prediction.is_told or self._n_held:
            return
        prediction.is_told = True
        raise CancelationException("the prediction was canceled")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is Interrupts._on_unraisable.__code__:
                return  # where nothing can be raised
            frame = frame.f_back
        self._raise_if_due()

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Repeats a cancel that was raised within a destructor, where Python drops it."""
        prediction = self._running
        if issubclass(unraisable.exc_type, CancelationException) and prediction is not None:
            prediction.is_told = False
            self.interrupt()
        else:
            self._report_unraisable(unraisable)


def is_caught(number: int) -> bool:
    """Returns whether the process has a handler for a signal, whoever set it: Python knows its own ones only."""
    with open("/proc/self/status", "rb") as status:
        mask = next(line for line in status if line.startswith(b"SigCgt:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
