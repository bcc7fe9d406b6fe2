"""Runs an application's handlers in a subprocess: imports it, starts a pool, serves its slots, stops.

Signals that a terminal sends to all processes at once do not end it: the server alone does. Handlers that are no
coroutines run in `ThreadRunner`, those that are in `loop_runner`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import signal
import threading
from collections.abc import Sequence
from contextvars import copy_context
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec.msgpack

from corosrv.base.errors import AppError, BadFrame, LoadError
from corosrv.workers.wire import calls
from corosrv.workers.wire.codec import StructCodec
from corosrv.workers.wire.messages import Lanes, SlotFailed
from corosrv.workers.worker.app.answers import invoke, invoke_batch
from corosrv.workers.worker.app.app import App
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.pools import BoundHandler, HandlerGroup, Pool, stop_method
from corosrv.workers.worker.child.call_lifecycle import CallLifecycle, HandlerCall, Result
from corosrv.workers.worker.child.lane_asks import AppLane, AppSlot, LaneAsks, LaneMail, ThreadCaller, make_lane
from corosrv.workers.worker.child.run import Poison
from corosrv.workers.worker.child.runtime import WorkerRuntime, describe, module_from_file, module_from_name, trace

log = logging.getLogger("corosrv.worker")


class ThreadRunner:
    """Serves lanes; belongs to the threads that it starts."""

    def __init__(self, desk: CallLifecycle, poison: Poison) -> None:
        self._desk = desk
        self._poison = poison

    def start(self, lane: AppLane) -> None:
        """Starts the thread of a lane, which runs its calls until the lane ends."""
        threading.Thread(target=self._serve, args=(lane,), name=f"corosrv-slot-{lane.id}", daemon=True).start()

    def _serve(self, lane: AppLane) -> None:
        try:
            asks = LaneAsks(lane)
            mail = LaneMail(lane, asks)
            slot = AppSlot(lane, asks, functools.partial(ThreadCaller, asks, mail))
            while (arrival := mail.next_call()) is not None:
                self._run(self._desk.begin(*arrival, slot))
        except BaseException as error:  # ours, or what a handler has done to the process
            if not isinstance(error, BadFrame):
                log.exception("slot %d ends", lane.id)
            self._poison(lane.id, str(error) or type(error).__name__)
            lane.close()

    def _run(self, call: HandlerCall) -> None:
        results = copy_context().run(self._results, call)
        self._desk.end(call, results)

    def _results(self, call: HandlerCall) -> list[Result]:
        """Runs the handler; returns what it gave back for each item, or the error that ended it."""
        self._desk.enter(call)
        try:
            results = self._invoke(call)
        except BaseException as error:  # also sys.exit() of user code, which ends a call and no more
            self._desk.fork.leave(error)
            return [error] * len(call.requests)
        self._desk.fork.leave()
        return results

    def _invoke(self, call: HandlerCall) -> list[Result]:
        handler = call.handler
        if call.is_batch:
            return [*invoke_batch(handler, call.requests, call.contexts)]
        call.signals[0].check()
        if handler.signature.kind.is_stream:
            invoke(handler, call.requests[0], call.contexts[0], lambda answer: self._send(call, answer))
            return [None]
        answers: list[ModelInferResponse] = []
        invoke(handler, call.requests[0], call.contexts[0], answers.append)
        return [*answers]

    def _send(self, call: HandlerCall, answer: ModelInferResponse) -> None:
        """Sends an answer before the next is made. Waits while the server does not read."""
        self._desk.fork.leave()
        call.signals[0].check()
        call.post_answer(answer)
        call.slot.lane.outbox.flush(unless=lambda: call.is_over)


if TYPE_CHECKING:
    from corosrv.workers.worker.app.pools import BaseWorker
    from corosrv.workers.worker.child.loop_runner import LoopRunner, LoopThread


_ADVICE = "an application is named as MODULE:NAME, looked for in --app-dir, or as FILE.py:NAME"


def load_app(init: calls.InitApp) -> App:
    """Imports the application. Raises LoadError, AppError, and what the author's code raises."""
    place, _, name = init.app_ref.rpartition(":") if ":" in init.app_ref else (init.app_ref, "", "app")
    module = _module(place, init.app_dir)
    try:
        target = getattr(module, name)
    except AttributeError:
        raise LoadError(f"{place} has no {name!r}: name the App, as {place}:NAME") from None
    app = _made_by(target, init.app_ref) if init.is_factory else target
    if not isinstance(app, App):
        raise LoadError(_no_app(init, app))
    if not app.pools():
        raise AppError(f"{init.app_ref} has no handlers: register some with @app.model, @app.capability or @app.worker")
    return app


def _module(place: str, app_dir: str) -> ModuleType:
    """Imports a module, or a file with its neighbours. Raises LoadError, and what the author's code raises."""
    if place.endswith(".py"):
        return module_from_file(os.path.join(app_dir, place))
    return module_from_name(place, _ADVICE, app_dir)


def _made_by(factory: Any, app_ref: str) -> Any:
    if not callable(factory):
        raise LoadError(
            f"{app_ref} is of type {type(factory).__name__} and no function that makes an App: drop --factory"
        )
    return factory()


def _no_app(init: calls.InitApp, target: Any) -> str:
    kind = type(target).__name__
    if init.is_factory:
        return f"{init.app_ref} returned an object of type {kind} and no App"
    advice = ": say --factory if it makes one" if callable(target) else ""
    return f"{init.app_ref} is of type {kind} and no App{advice}"


def find_pool(app: App, name: str) -> Pool:
    """Returns the pool of this name. Raises LoadError."""
    for pool in app.pools():
        if pool.name == name:
            return pool
    raise LoadError(f"the application has no pool {name!r}")


_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def install() -> None:
    """Makes the worker survive a terminal's signals; copies that a handler forks do not. In the main thread."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in _NUMBERS}
    masks = threading.local()

    def before_fork() -> None:
        # A signal that reaches the copy before it has its own handlers would be lost.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)

    def after_in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def after_in_child() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    os.register_at_fork(before=before_fork, after_in_parent=after_in_parent, after_in_child=after_in_child)


HEARTBEAT = 1.6  # seconds between two: a lease of 10 s outlives five that are lost


class AppChild:
    """A worker process. `main` runs in the main thread; messages of the server are handled in the control thread."""

    def __init__(self, control_fd: int, lifeline_fd: int) -> None:
        codec: StructCodec[calls.ControlFromAppWorker, calls.ControlToAppWorker] = StructCodec(
            calls.ControlToAppWorker, msgspec.msgpack
        )
        self._runtime: WorkerRuntime[calls.ControlFromAppWorker, calls.ControlToAppWorker] = WorkerRuntime(
            control_fd, lifeline_fd, codec, contextlib.nullcontext()
        )
        self._control = self._runtime.control
        self._fork = self._runtime.fork
        self._starts: SimpleQueue[calls.InitApp | calls.StartPool] = SimpleQueue()
        self._stop: calls.StopWorker | None = None
        self._is_stopping = threading.Event()
        self._worker: BaseWorker | None = None  # of a pool that is a class
        self._slot_groups: list[HandlerGroup] = []  # one for each slot
        self._lanes: list[AppLane] = []
        self._is_registered = False
        self._desk: CallLifecycle
        self._threads: ThreadRunner
        self._loop_thread: LoopThread | None = None  # where something is a coroutine
        self._loop: LoopRunner | None = None

    def main(self) -> NoReturn:
        """Imports the application, starts the pool that the server names, serves calls and ends the process."""
        try:
            self._runtime.install(self._let_go)
            install()
            self._control.start(self._on_message, self._beat, HEARTBEAT)
            self._start(self._starts.get())
        except BaseException as error:  # also sys.exit() of user code
            self._fork.leave(error)
            self._runtime.fail(error, calls.StartFailed(describe(error)))
        self._is_stopping.wait()
        self._end()

    # The start, in the main thread.

    def _start(self, init: calls.InitApp | calls.StartPool) -> None:
        if not isinstance(init, calls.InitApp) or init.protocol != calls.PROTOCOL:
            raise LoadError(f"the server speaks another protocol than this worker, which speaks {calls.PROTOCOL}")
        app = load_app(init)
        self._fork.leave()
        self._say(calls.Loaded([pool.card() for pool in app.pools()]))
        start = self._starts.get()
        assert isinstance(start, calls.StartPool), "the server sends one Init"
        pool = find_pool(app, start.pool)
        handlers = self._start_pool(pool)
        self._serve(pool, handlers, start.worker_id or init.worker_id)

    def _start_pool(self, pool: Pool) -> list[BoundHandler]:
        if pool.worker_class is not None:
            self._worker = pool.worker_class()
            self._complete(self._worker.on_start)
            self._fork.leave()
        return pool.bind(self._worker)

    def _serve(self, pool: Pool, handlers: list[BoundHandler], worker_id: str) -> None:
        """Registers the handlers. Calls come as soon as the server has sent lanes."""
        self._slot_groups = list(pool.slot_groups())
        self._desk = CallLifecycle(handlers, self._runtime.capture, self._runtime.server_log, self._fork, worker_id)
        self._threads = ThreadRunner(self._desk, self._poison)
        if any(group.signature.kind.is_async for group in pool.groups):
            from corosrv.workers.worker.child.loop_runner import LoopRunner

            self._loop = LoopRunner(self._make_loop(), self._desk, self._poison)
        self._is_registered = True
        self._say(calls.Registered([handler.card for handler in handlers]))

    def _complete(self, method: Any) -> None:
        """Calls on_start or on_stop, which may be a coroutine function."""
        result = method()
        if inspect.iscoroutine(result):
            self._make_loop().complete(result)

    def _make_loop(self) -> LoopThread:
        if self._loop_thread is None:
            # Not for plain functions: asyncio takes longer to import than all the rest.
            from corosrv.workers.worker.child.loop_runner import LoopThread

            self._loop_thread = LoopThread()
        return self._loop_thread

    def _say(self, message: calls.ControlFromAppWorker) -> None:
        """Sends a message behind all that was printed before."""
        self._runtime.capture.flush()
        self._control.outbox.post(message)

    # The end, in the main thread.

    def _end(self) -> NoReturn:
        """Runs on_stop in the time that it has, and ends the process. Waits for no call."""
        assert self._stop is not None, "it was told to"
        limit = threading.Timer(self._stop.grace_ms / 1000, self._runtime.leave_at_once, [calls.WorkerStopped()])
        limit.daemon = True
        limit.start()
        try:
            if self._worker is not None:
                self._complete(getattr(self._worker, stop_method(type(self._worker))))
        except BaseException as error:  # it ends anyway
            self._fork.leave(error)
            self._runtime.server_log.write("stderr", f"on_stop failed: {trace(error)}".encode("utf-8", "replace"))
        self._fork.leave()
        self._runtime.leave(calls.WorkerStopped())

    # What the server says, in the control thread.

    def _on_message(self, message: calls.ControlToAppWorker, fds: Sequence[int]) -> None:
        if isinstance(message, (calls.InitApp, calls.StartPool)):
            self._starts.put(message)
        elif isinstance(message, Lanes):
            self._add_lanes(fds)
        elif isinstance(message, calls.CancelCall):
            if self._is_registered:
                self._desk.cancels.cancel(message)
        else:
            self._shut_down(message)

    def _add_lanes(self, fds: Sequence[int]) -> None:
        for fd in fds:
            if len(self._lanes) >= len(self._slot_groups):
                raise BadFrame(f"more lanes than the {len(self._slot_groups)} slots of the pool")
            lane = make_lane(len(self._lanes), fd, self._runtime.ferry, self._control.drops)
            self._lanes.append(lane)
            self._start_lane(lane)

    def _start_lane(self, lane: AppLane) -> None:
        if self._slot_groups[lane.id].signature.kind.is_async:
            assert self._loop is not None, "a pool with coroutines has it"
            self._loop.start(lane)
        else:
            self._control.watch_once(lane.fileno(), lambda: self._threads.start(lane))

    def _shut_down(self, message: calls.StopWorker) -> None:
        if not self._is_registered:  # nothing runs that would be waited for, and on_stop has nothing to undo
            self._runtime.leave_at_once(calls.WorkerStopped())
        for lane in self._lanes:
            lane.hang_up()
        self._stop = message
        self._is_stopping.set()

    def _beat(self) -> None:
        """Sends a heartbeat: the control thread turns, whatever handlers do."""
        n_running = self._desk.cancels.n_running if self._is_registered else 0
        self._control.outbox.post(calls.Heartbeat(n_running, _resident_bytes()))

    def _poison(self, slot: int, reason: str) -> None:
        self._control.outbox.post(SlotFailed(slot, reason))

    def _let_go(self) -> None:
        """Closes the lanes in a forked copy, which must not use them."""
        for lane in self._lanes:
            lane.let_go()
        if self._loop_thread is not None:
            self._loop_thread.let_go(self._fork)


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:  # no descriptor is left
        return 0


def main(arguments: Sequence[str]) -> NoReturn:
    """Runs the worker; the arguments are `--control FD --lifeline FD`."""
    match arguments:
        case ["--control", control, "--lifeline", end]:
            AppChild(int(control), int(end)).main()
    raise SystemExit("corosrv.workers.worker.app is started by a corosrv server: corosrv serve MODULE:APP")
