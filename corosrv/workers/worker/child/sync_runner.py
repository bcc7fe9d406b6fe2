"""Runs a predictor that is no coroutine: one prediction at a time, in the main thread, where it can be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, TypeVar, cast

from corosrv.base.errors import BadFrame, OutputFailed
from corosrv.workers.worker.child.cancel import Interrupts
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.child.load import Predictor
from corosrv.workers.worker.child.run import Poison, PredictionLifecycle, PredictLane, RunningPrediction
from corosrv.workers.worker.predictor import CancelationException
from corosrv.workers.worker.values.inputs import Inputs

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
