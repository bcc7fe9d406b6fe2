"""Begins, runs and ends predictions in the worker process, and holds the child's end of each slot's channel.

`SyncRunner` runs a predictor that is no coroutine: one prediction at a time, in the main thread, where it can be
interrupted.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import Context, copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Generic, TypeVar, cast

import msgspec

from corosrv.base.errors import BadFrame, InputFailed, OutputFailed
from corosrv.contracts.jobs.setup import Cancelled, Done, Failed, FileOutput, LogLine, Metric, OutputChunk
from corosrv.workers.wire.codec import Codec, In, Out
from corosrv.workers.wire.messages import Predict, SlotToServer
from corosrv.workers.wire.thread_channel import ThreadChannel
from corosrv.workers.worker.capture import Capture
from corosrv.workers.worker.child.cancel import Cancels, Interrupts
from corosrv.workers.worker.child.control import Drops, Ferry, Outbox
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.child.runtime import Predictor, describe, trace
from corosrv.workers.worker.predictor import CancelationException
from corosrv.workers.worker.printed import Printed, place
from corosrv.workers.worker.scope import Metrics, Scope, scope
from corosrv.workers.worker.values import outputs
from corosrv.workers.worker.values.inputs import Inputs
from corosrv.workers.worker.values.outputs import Draft


class SlotEnd(Generic[Out, In]):
    """Owns an inherited socket. Messages come in by one thread or by an event loop; any thread sends.

    `receive`, `receive_nowait` and `take_fds` are the channel's; see ThreadChannel.
    """

    def __init__(
        self, id: int, fd: int, codec: Codec[Out, In], ferry: Ferry, drops: Drops, *, takes_fds: bool = False
    ) -> None:
        """`takes_fds`: descriptors that come with messages are kept for take_fds(); else the kernel drops them."""
        self.id = id
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._channel: ThreadChannel[Out, In] = ThreadChannel(self._socket, codec, takes_fds=takes_fds)
        channel = self._channel
        self.receive, self.receive_nowait, self.take_fds = channel.receive, channel.receive_nowait, channel.take_fds
        self.outbox: Outbox[Out] = Outbox(self._socket, codec, ferry, drops)

    def fileno(self) -> int:
        return self._socket.fileno()

    def has_mail(self) -> bool:
        """Returns whether a message waits that was not received yet. Any thread."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def hang_up(self) -> None:
        """Accepts no more messages and wakes the receiver. Running calls can still answer. Any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def let_go(self) -> None:
        """Closes the socket in a forked copy."""
        self._socket.close()

    def close(self) -> None:
        self.outbox.close()
        self._channel.close()


Poison = Callable[[int, str], None]  # a slot's id, and why it can run nothing any more


PredictLane = SlotEnd[SlotToServer, Predict]


class RunningPrediction:
    """A prediction that was received from its slot's channel. Made and ended by a PredictionLifecycle.

    What it prints, records and yields goes out at once, and nothing does after its terminal message.
    """

    def __init__(
        self,
        predict: Predict,
        slot: int,
        outbox: Outbox[SlotToServer],
        server_log: Printed,
        cancel_guard: AbstractContextManager[None],
        agent: str | None,
    ) -> None:
        self.id = predict.id
        self.slot = slot
        self.predict = predict
        self.outbox = outbox
        self.printed = Printed(lambda source, text: outbox.post_log(LogLine(source, text)), successor=server_log)
        self.scope = Scope(dict(predict.context), Metrics(self._record))
        self.is_stream = False  # its chunks are members of a list
        self._is_foreseen = True  # the annotation has said whether it is a stream
        self.is_cancelled = False
        self.is_told = False
        self.interrupt: Callable[[], None] = lambda: None  # gets a cancel into user code; set by the runner
        self.agent = agent  # of downloads
        self._cancel_guard = cancel_guard
        self._n_chunks = 0
        self._value: tuple[OutputChunk | FileOutput, ...] = ()
        self._ending = threading.RLock()  # guards what follows, from threads that record to the last
        self._is_over = False
        self._began: float | None = None  # when user code did
        self._ended: float | None = None

    def on_cancel(self) -> None:
        self.interrupt()
        self.outbox.nudge()

    def input(self) -> dict[str, Any]:
        """Returns the input that the server checked. Raises InputFailed if the file that holds it cannot be read."""
        if self.predict.input_file is None:
            return self.predict.input or {}
        try:
            with open(self.predict.input_file, "rb") as file:
                return msgspec.json.decode(file.read(), type=dict[str, Any])
        except (OSError, msgspec.MsgspecError) as error:
            raise InputFailed(f"the input cannot be read: {error}") from error

    def enter(self) -> None:
        """Makes the current context the prediction's."""
        scope.set(self.scope)
        place.set(self.printed)

    def start_clock(self) -> None:
        self._began = time.monotonic()

    def stop_clock(self) -> None:
        """Stops the clock. Only the first call counts."""
        self._ended = self._ended or time.monotonic()

    def see(self, result: Any) -> None:
        """Notes whether the result is a stream of chunks or one value, whatever the annotation says."""
        if not self.is_stream and isinstance(result, GeneratorType | AsyncGeneratorType):
            self.is_stream, self._is_foreseen = True, False  # so its chunks have to say it
        elif self.is_stream and not outputs.is_many(result):
            self.is_stream = False

    def draft(self, value: Any) -> Draft:
        """Drafts the next chunk, or the whole result. Raises OutputFailed."""
        return Draft(value, self._n_chunks, self.predict.output_dir)

    def post_chunk(self, chunk: OutputChunk | FileOutput) -> None:
        """Sends a chunk. Does not wait for the server."""
        self.outbox.post(chunk if self._is_foreseen else msgspec.structs.replace(chunk, is_stream=True))
        self._n_chunks += 1

    def keep_value(self, value: OutputChunk | FileOutput) -> None:
        """Keeps the whole result for the terminal message: another system call would cost more than all else here."""
        self._value = (value,)

    def end(self, is_cancelled: bool, error: BaseException | None) -> None:
        """Sends the terminal message. Whether the prediction was cancelled decides, never the text of `error`."""
        with self._ending:
            self._is_over = True
        try:
            self.outbox.post(*self._value, self._terminal(is_cancelled, error))
        except Exception as unsendable:  # no JSON or too large: a prediction must have an end
            self.outbox.post(self._terminal(is_cancelled, unsendable))

    def _terminal(self, is_cancelled: bool, error: BaseException | None) -> Done | Failed | Cancelled:
        seconds = self._seconds()
        if is_cancelled:
            return Cancelled(self.id, seconds, self.is_stream)
        if error is not None:
            return Failed(self.id, seconds, describe(error), self.is_stream)
        return Done(self.id, seconds, self.is_stream)

    def _record(self, name: str, value: Any, mode: str) -> None:
        with self._cancel_guard, self._ending:
            if not self._is_over:
                self.outbox.post_slowly(Metric(name, value, mode))

    def _seconds(self) -> float:
        if self._began is None:
            return 0.0
        return (self._ended or time.monotonic()) - self._began


class PredictionLifecycle:
    """Begins and ends predictions, of all slots; in the thread that runs them."""

    def __init__(
        self,
        capture: Capture,
        cancels: Cancels,
        server_log: Printed,
        cancel_guard: AbstractContextManager[None],
        agent: str | None = None,
    ) -> None:
        self._agent = agent
        self._capture = capture
        self._cancels = cancels
        self._server_log = server_log
        self._cancel_guard = cancel_guard

    def begin(self, predict: Predict, slot: int, outbox: Outbox[SlotToServer]) -> RunningPrediction:
        run = RunningPrediction(predict, slot, outbox, self._server_log, self._cancel_guard, self._agent)
        self._capture.begin(run.printed)
        self._cancels.begin(slot, run)
        return run

    def end(self, run: RunningPrediction, error: BaseException | None = None) -> None:
        """Sends the rest of its printed text, then its terminal message: by then the slot is free."""
        self._capture.end(run.printed)
        is_cancelled = self._cancels.end(run.slot)
        run.printed.close()
        if error is not None and not is_cancelled:  # for the operator: clients get the error alone
            self._server_log.write("stderr", f"prediction {run.id} failed: {trace(error)}".encode("utf-8", "replace"))
        run.end(is_cancelled, error)


T = TypeVar("T")

_END = object()
_UNAWAITED = "the output is of type {}: write `async def`, or annotate what is returned as AsyncIterator or Awaitable"


class SyncRunner:
    """Belongs to the main thread."""

    def __init__(
        self,
        predictor: Predictor,
        slot: PredictLane,
        desk: PredictionLifecycle,
        interrupts: Interrupts,
        fork: Fork,
        poison: Poison,
    ) -> None:
        self._predictor = predictor
        self._slot = slot
        self._desk = desk
        self._interrupts = interrupts
        self._fork = fork
        self._poison = poison

    def serve(self) -> None:
        """Runs predictions until the channel ends."""
        try:
            while (predict := self._slot.receive()) is not None:
                run = self._desk.begin(predict, self._slot.id, self._slot.outbox)
                error = self._error_of(run)
                self._fork.leave(error)
                self._desk.end(run, error)
        except BadFrame as error:
            self._poison(self._slot.id, str(error))

    def _error_of(self, run: RunningPrediction) -> BaseException | None:
        """Runs the prediction; returns the error that ended it, or None."""
        try:
            self._predict(run)
        except BaseException as error:  # also sys.exit() of user code, which ends a prediction and no more
            return error
        finally:
            run.stop_clock()
        return None

    def _predict(self, run: RunningPrediction) -> None:
        run.is_stream = self._predictor.signature.is_generator
        with Inputs(self._predictor.signature, run.predict.output_dir, run.agent) as inputs:
            run.interrupt = inputs.cancel
            if run.is_cancelled:  # before there was anything to interrupt
                return
            arguments = inputs.prepare(run.input())
            run.interrupt = self._interrupts.interrupt
            if not run.is_cancelled:
                self._call(run, arguments)

    def _call(self, run: RunningPrediction, arguments: dict[str, Any]) -> None:
        user = _SyncUserCode(run, self._interrupts)
        run.start_clock()
        result = user.call(self._predictor.call, **arguments)
        if isinstance(result, CoroutineType | AsyncGeneratorType):
            raise OutputFailed(_UNAWAITED.format(type(result).__name__))
        run.see(result)
        if not run.is_stream:
            run.stop_clock()
            run.keep_value(run.draft(result).message())
            return
        self._stream(run, user, user.call(iter, result))

    def _stream(self, run: RunningPrediction, user: _SyncUserCode, chunks: Iterator[Any]) -> None:
        """Sends each chunk before the next is made."""
        try:
            while (chunk := user.call(next, chunks, _END)) is not _END:
                self._fork.leave()
                run.post_chunk(run.draft(chunk).message())
                run.outbox.flush(unless=lambda: run.is_cancelled)
                if run.is_cancelled:
                    user.throw_cancel(chunks)
        finally:
            if isinstance(chunks, GeneratorType):
                user.call_anyway(chunks.close)


class _SyncUserCode:
    """Calls what the author wrote, in the prediction's own context."""

    def __init__(self, run: RunningPrediction, interrupts: Interrupts) -> None:
        self._run = run
        self._interrupts = interrupts
        self._context: Context = copy_context()
        self._context.run(run.enter)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls user code, unless the prediction is cancelled. Raises CancelationException."""
        return self._interrupts.call(self._run, cast("Callable[..., T]", self._context.run), function, *args, **kwargs)

    def call_anyway(self, function: Callable[[], object]) -> None:
        """Calls user code to clean up, also after a cancel."""
        self._context.run(function)

    def throw_cancel(self, chunks: Iterator[Any]) -> None:
        """Raises the cancel in a generator that waits at a `yield`, once; later chunks are not read."""
        if isinstance(chunks, GeneratorType) and not self._run.is_told:
            self._run.is_told = True
            self._context.run(chunks.throw, CancelationException("the prediction was canceled"))
        raise CancelationException("the prediction was canceled")
