"""Runs a predictor that is a coroutine or an async generator: the predictions of all slots on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from corosrv.base.errors import BadFrame
from corosrv.contracts.jobs.setup import FileOutput, OutputChunk
from corosrv.workers.wire.messages import Predict
from corosrv.workers.worker.child.lifeline import Fork
from corosrv.workers.worker.child.run import Poison, PredictionLifecycle, PredictLane, RunningPrediction
from corosrv.workers.worker.child.runtime import Predictor
from corosrv.workers.worker.signatures.shapes import AnyOf, DictOf, Fetched, ListOf, Nullable, Shape
from corosrv.workers.worker.values.inputs import Inputs
from corosrv.workers.worker.values.outputs import Draft

T = TypeVar("T")

log = logging.getLogger("corosrv.worker")


class AsyncRunner:
    """Belongs to the loop's thread, the main one."""

    def __init__(
        self,
        predictor: Predictor,
        slots: Sequence[PredictLane],
        desk: PredictionLifecycle,
        loop: asyncio.AbstractEventLoop,
        fork: Fork,
        poison: Poison,
    ) -> None:
        self._predictor = predictor
        self._fetches = any(fetches(field.shape) for field in predictor.signature.inputs)
        self._open = set(slots)
        self._desk = desk
        self._loop = loop
        self._fork = fork
        self._poison = poison
        # Not the loop's own threads: user code may keep those busy, and what waits for it here would wait for them.
        self._helpers = ThreadPoolExecutor(len(slots), "corosrv-helper")
        self._tasks: dict[PredictLane, asyncio.Task[BaseException | None]] = {}

    def serve(self) -> None:
        """Runs predictions until all channels have ended and every prediction that came over them."""
        for slot in self._open:
            self._loop.add_reader(slot.fileno(), self._receive, slot)
        while self._open or self._tasks:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:  # out of some task that the predictor started
                log.warning("a task that the predictor started raised %r; predictions go on", error)

    def _receive(self, slot: PredictLane) -> None:
        try:
            with contextlib.suppress(BlockingIOError):
                while (predict := slot.receive_nowait()) is not None:
                    self._start(slot, predict)
                self._end(slot)
        except BadFrame as error:
            self._end(slot)
            self._poison(slot.id, str(error))

    def _end(self, slot: PredictLane) -> None:
        self._loop.remove_reader(slot.fileno())
        self._open.discard(slot)
        self._stop_if_idle()

    def _stop_if_idle(self) -> None:
        if not self._open and not self._tasks:
            self._loop.stop()

    def _start(self, slot: PredictLane, predict: Predict) -> None:
        if slot in self._tasks:
            raise BadFrame("a prediction came before the one before it had ended")
        run = self._desk.begin(predict, slot.id, slot.outbox)
        self._tasks[slot] = task = self._loop.create_task(self._error_of(run))
        task.add_done_callback(lambda task: self._finish(slot, run, task))

    def _finish(self, slot: PredictLane, run: RunningPrediction, task: asyncio.Task[BaseException | None]) -> None:
        # First, as whoever gets the terminal message may send the next prediction at once.
        del self._tasks[slot]
        # User code that cancels all tasks there are may hit this one before it begins.
        self._desk.end(run, asyncio.CancelledError() if task.cancelled() else task.result())
        self._stop_if_idle()

    async def _error_of(self, run: RunningPrediction) -> BaseException | None:
        """Runs the prediction; returns the error that ended it, or None."""
        run.enter()
        try:
            await self._predict(run)
        except BaseException as error:  # also sys.exit() of user code, which ends a prediction and no more
            self._fork.leave(error)
            return error
        finally:
            run.stop_clock()
        self._fork.leave()
        return None

    async def _predict(self, run: RunningPrediction) -> None:
        run.is_stream = self._predictor.signature.is_generator
        with Inputs(self._predictor.signature, run.predict.output_dir, run.agent) as inputs:
            run.interrupt = inputs.cancel
            if run.is_cancelled:  # before there was anything to interrupt
                return
            prepare = functools.partial(inputs.prepare, run.input())
            arguments = await self._aside(prepare) if self._fetches else prepare()
            user = _AsyncUserCode(run, self._loop)
            if not run.is_cancelled:
                await self._call(run, user, arguments)

    async def _call(self, run: RunningPrediction, user: _AsyncUserCode, arguments: dict[str, Any]) -> None:
        run.start_clock()
        result = self._predictor.call(**arguments)
        if inspect.isawaitable(result):
            result = await user.wait(result)
        run.see(result)
        if not run.is_stream:
            run.stop_clock()
            run.keep_value(await self._message(run.draft(result)))
            return
        await self._stream(run, user, result)

    async def _stream(self, run: RunningPrediction, user: _AsyncUserCode, chunks: Any) -> None:
        """Sends each chunk before the next is made."""
        if not hasattr(chunks, "__anext__"):
            chunks = aiter(chunks) if hasattr(chunks, "__aiter__") else _from_iterable(chunks)
        try:
            while True:
                if run.is_cancelled:
                    await user.throw_cancel(chunks)
                try:
                    chunk = await user.wait(anext(chunks))
                except StopAsyncIteration:
                    return
                run.post_chunk(await self._message(run.draft(chunk)))
                if not run.outbox.is_empty:
                    await self._wait_until_sent(run)
        finally:
            if inspect.isasyncgen(chunks):
                await chunks.aclose()

    async def _message(self, draft: Draft) -> OutputChunk | FileOutput:
        return await self._aside(draft.message) if draft.waits else draft.message()

    async def _aside(self, work: Callable[[], T]) -> T:
        """Runs slow work, as downloads and large files, in a thread: other predictions run on this loop."""
        return await self._loop.run_in_executor(self._helpers, work)

    async def _wait_until_sent(self, run: RunningPrediction) -> None:
        """Waits until the kernel has all messages, or the prediction is cancelled."""
        has_news = asyncio.Event()
        while not run.outbox.is_empty and not run.is_cancelled:
            has_news.clear()
            run.outbox.on_empty(lambda: self._loop.call_soon_threadsafe(has_news.set))
            await has_news.wait()


class _AsyncUserCode:
    """Waits for the author's code, the only place where a cancel interrupts."""

    def __init__(self, run: RunningPrediction, loop: asyncio.AbstractEventLoop) -> None:
        self._run = run
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None  # while it waits in user code
        run.interrupt = self._interrupt

    async def wait(self, user_code: Awaitable[T]) -> T:
        """Awaits user code. Raises CancelledError if the prediction is cancelled meanwhile."""
        self._task = asyncio.current_task()
        try:
            return await user_code
        finally:
            self._task = None

    async def throw_cancel(self, chunks: AsyncIterator[Any]) -> None:
        """Throws the cancel into a generator that waits at a `yield`, once; what it yields after that is dropped."""
        if inspect.isasyncgen(chunks) and not self._run.is_told:
            self._run.is_told = True
            await chunks.athrow(asyncio.CancelledError())
        raise asyncio.CancelledError

    def _interrupt(self) -> None:
        """Interrupts a prediction. Any thread may call."""
        self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        # In the loop's thread, where user code stands still: at an `await`, and nowhere else.
        if self._task is not None and not self._run.is_told:
            self._run.is_told = True
            self._task.cancel()


async def _from_iterable(items: Any) -> AsyncIterator[Any]:
    for item in items:
        yield item


def fetches(shape: Shape) -> bool:
    """Returns whether a value of this shape may hold a file, which takes time to fetch."""
    match shape:
        case Fetched():
            return True
        case ListOf(inner) | DictOf(inner) | Nullable(inner):
            return fetches(inner)
        case AnyOf(members):
            return any(map(fetches, members))
    return False
