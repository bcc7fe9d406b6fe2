"""The subprocess of a predictor: connect, set up, serve slots, shut down. Knows neither HTTP nor gevent nor any engine.

Predictors written for Cog run unchanged: its `cog` package asks a native one, `coglet`, for the prediction at hand, and
`stand_in` answers in its place. The author's own health check runs in a thread of its own, within a time limit.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from corosrv.base import __version__
from corosrv.base.errors import LoadError
from corosrv.workers.wire import messages
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.worker.child.cancel import Cancels, Interrupts
from corosrv.workers.worker.child.run import PredictionLifecycle, PredictLane, SlotEnd, SyncRunner
from corosrv.workers.worker.child.runtime import Predictor, WorkerRuntime, describe, load
from corosrv.workers.worker.predictor import CancelationException
from corosrv.workers.worker.scope import current_scope
from corosrv.workers.worker.signatures.signature import document as openapi_document

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

LIMIT = 5.0  # seconds
_FAILED = "Healthcheck failed"  # how Cog's reasons begin


class HealthcheckRunner:
    """Answers each question once, within the limit. Any thread may ask."""

    def __init__(
        self,
        check: Callable[[], Any] | None,
        answer: Callable[[str, str | None], None],
        loop: AbstractEventLoop | None = None,
        limit: float = LIMIT,
    ) -> None:
        """`answer(id, reason)`, of any thread; the reason is None when all is well. `loop`: where a coroutine runs."""
        self._check = check
        self._answer = answer
        self._loop = loop
        self._limit = limit
        self._timers: dict[str, threading.Timer] = {}  # of the questions that wait for the running check, by id
        self._is_running = False
        self._lock = threading.Lock()

    def ask(self, id: str) -> None:
        """Starts a check, or shares the running one's outcome. Does not wait."""
        if self._check is None:
            self._answer(id, None)
            return
        limit = threading.Timer(self._limit, self._give_up, [id])
        limit.daemon = True
        with self._lock:
            self._timers[id] = limit
            is_first, self._is_running = not self._is_running, True
        limit.start()
        if is_first:
            threading.Thread(target=self._run, name="corosrv-healthcheck", daemon=True).start()

    def _run(self) -> None:
        reason = self._reason()
        with self._lock:
            self._is_running = False
            timers, self._timers = self._timers, {}
        for id, limit in timers.items():
            limit.cancel()
            self._answer(id, reason)

    def _reason(self) -> str | None:
        try:
            result = self._call()
        except BaseException as error:  # also sys.exit() of user code
            return f"{_FAILED}: {describe(error)}"
        return f"{_FAILED}: user-defined healthcheck returned False" if result is False else None

    def _call(self) -> Any:
        assert self._check is not None, "a check runs that there is none of"
        if not inspect.iscoroutinefunction(self._check):
            return self._check()
        import asyncio

        if self._loop is None:
            return asyncio.run(self._check())
        return asyncio.run_coroutine_threadsafe(self._check(), self._loop).result()

    def _give_up(self, id: str) -> None:
        """Answers a health check that took too long. The check goes on, and no other starts meanwhile."""
        with self._lock:
            is_waiting = self._timers.pop(id, None) is not None
        if is_waiting:
            self._answer(id, f"{_FAILED}: user-defined healthcheck timed out after {self._limit:.1f} seconds")


def stand_in() -> None:
    """Registers a stand-in for coglet if cog is installed. Without cog there is none to import."""
    if importlib.util.find_spec("cog") is None:
        return
    coglet = ModuleType("coglet", "corosrv, in the place of Cog's own server")
    coglet.__dict__.update(
        __version__=__version__,
        CancelationException=CancelationException,
        server=SimpleNamespace(active=True),
        _sdk=SimpleNamespace(current_scope=current_scope),
    )
    sys.modules["coglet"] = coglet


class Child:
    """A worker process. `main` runs in the main thread; messages of the server are handled in the control thread."""

    def __init__(self, control_fd: int, lifeline_fd: int) -> None:
        self._interrupts = Interrupts()
        codec: StructCodec[messages.ControlToServer, messages.ControlToWorker] = StructCodec(messages.ControlToWorker)
        self._runtime: WorkerRuntime[messages.ControlToServer, messages.ControlToWorker] = WorkerRuntime(
            control_fd, lifeline_fd, codec, self._interrupts
        )
        self._control = self._runtime.control
        self._fork = self._runtime.fork
        self._init: SimpleQueue[messages.Init] = SimpleQueue()
        self._slots: list[PredictLane] = []
        self._n_slots = 0
        self._has_slots = threading.Event()  # all of them
        self._cancels = Cancels(lambda slot: slot < len(self._slots) and self._slots[slot].has_mail())
        self._loop: AbstractEventLoop | None = None  # of async predictors
        self._health: HealthcheckRunner | None = None  # once it is set up
        self._is_shutting_down = threading.Event()
        self._is_loaded = False

    def main(self) -> NoReturn:
        """Sets the predictor up, serves predictions and ends the process."""
        try:
            self._interrupts.install()
            self._runtime.install(self._let_go)
            self._control.start(self._on_message)
            predictor = self._set_up(self._init.get())
        except BaseException as error:  # also sys.exit() of user code
            self._fork.leave(error)
            self._runtime.fail(error, messages.SlotFailed(-1, describe(error), is_unloadable=not self._is_loaded))
        self._has_slots.wait()
        self._serve(predictor)
        self._is_shutting_down.wait()
        self._runtime.leave(messages.WorkerLeaving())

    # Set-up.

    def _set_up(self, init: messages.Init) -> Predictor:
        if init.protocol != messages.PROTOCOL:
            raise LoadError(f"the server speaks protocol {init.protocol}, this worker {messages.PROTOCOL}")
        stand_in()
        predictor = load(init.predictor_ref)
        self._n_slots = _n_slots(init.num_slots, predictor)
        document = openapi_document(predictor.signature)
        self._is_loaded = True
        if predictor.signature.is_async or inspect.iscoroutinefunction(predictor.setup):
            self._make_loop()
        self._call_setup(predictor)
        self._health = HealthcheckRunner(
            predictor.healthcheck, self._answer_health, self._loop if predictor.signature.is_async else None
        )
        # What set-up printed comes before the word that it is over.
        self._runtime.capture.flush()
        has_healthcheck = predictor.healthcheck is not None
        self._control.outbox.post(messages.Ready(list(range(self._n_slots)), document, has_healthcheck=has_healthcheck))
        return predictor

    def _make_loop(self) -> None:
        import asyncio  # not for sync predictors: it takes longer than all the rest

        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def _call_setup(self, predictor: Predictor) -> None:
        if predictor.setup is None:
            return
        takes_weights = predictor.signature.takes_weights
        arguments = {"weights": os.environ.get("COG_WEIGHTS") or None} if takes_weights else {}
        result = predictor.setup(**arguments)
        if inspect.iscoroutine(result) and self._loop is not None:
            self._loop.run_until_complete(result)
        self._fork.leave()

    # Serving.

    def _serve(self, predictor: Predictor) -> None:
        agent = os.environ.get("COROSRV_USER_AGENT") or os.environ.get("COG_USER_AGENT")
        desk = PredictionLifecycle(
            self._runtime.capture, self._cancels, self._runtime.server_log, self._interrupts, agent
        )
        if predictor.signature.is_async:
            from corosrv.workers.worker.child.async_runner import AsyncRunner

            assert self._loop is not None, "an async predictor has a loop"
            AsyncRunner(predictor, self._slots, desk, self._loop, self._fork, self._poison).serve()
        else:
            SyncRunner(predictor, self._slots[0], desk, self._interrupts, self._fork, self._poison).serve()

    def _poison(self, slot: int, reason: str) -> None:
        self._control.outbox.post(messages.SlotFailed(slot, reason))

    # What the server says, in the control thread.

    def _on_message(self, message: messages.ControlToWorker, fds: Sequence[int]) -> None:
        if isinstance(message, messages.Init):
            self._init.put(message)
        elif isinstance(message, messages.Lanes):
            self._add_slots(fds)
        elif isinstance(message, messages.Cancel):
            self._cancels.cancel(message.slot, message.id)
        elif isinstance(message, messages.HealthCheck):
            if self._health is not None:
                self._health.ask(message.id)
        else:
            self._shut_down()

    def _add_slots(self, fds: Sequence[int]) -> None:
        for fd in fds:
            codec: StructCodec[messages.SlotToServer, messages.SlotToWorker] = StructCodec(messages.SlotToWorker)
            self._slots.append(SlotEnd(len(self._slots), fd, codec, self._runtime.ferry, self._control.drops))
        if len(self._slots) >= self._n_slots:
            self._has_slots.set()

    def _shut_down(self) -> None:
        if not self._has_slots.is_set():  # nothing runs that would be waited for
            self._runtime.leave_at_once(messages.WorkerLeaving())
        for slot in self._slots:
            slot.hang_up()
        self._is_shutting_down.set()

    def _answer_health(self, id: str, reason: str | None) -> None:
        status = "healthy" if reason is None else "unhealthy"
        self._control.outbox.post(messages.HealthCheckResult(id, status, reason or ""))

    def _let_go(self) -> None:
        """Closes the slots' channels in a forked copy, which must not use them."""
        for slot in self._slots:
            slot.let_go()
        if self._loop is not None:
            # A copy that comes back to the loop would run everybody's tasks, with the worker's own epoll.
            self._loop.call_soon(self._fork.leave)


def _n_slots(n_requested: int | None, predictor: Predictor) -> int:
    signature = predictor.signature
    n_slots = n_requested or signature.concurrency or 1
    if n_slots > 1 and not signature.is_async:
        raise LoadError(f"{n_slots} slots need an async {signature.method}(): a sync one takes one at a time")
    return n_slots


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the worker; the arguments are `--control FD --lifeline FD`."""
    match arguments:
        case ["--control", control, "--lifeline", end]:
            Child(int(control), int(end)).main()
    raise SystemExit("corosrv.worker is started by a corosrv server: corosrv serve --predictor FILE.py:NAME")
