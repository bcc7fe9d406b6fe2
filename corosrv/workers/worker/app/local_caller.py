"""Gives handlers that run in the process of a test what a server gives them: calls of each other, and objects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from corosrv.base.errors import CorosrvError
from corosrv.workers.objects.store import ObjectStore
from corosrv.workers.wire.calls import ObjectAnswer
from corosrv.workers.worker.app.asking import OutgoingCall
from corosrv.workers.worker.app.call_errors import error_of
from corosrv.workers.worker.app.errors import failure_kind
from corosrv.workers.worker.app.messages import ModelInferResponse
from corosrv.workers.worker.app.objects import AsyncObjects, MakeObjectAsk, ObjectReply, Objects
from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.parent.call_errors import error_of as error_of_failure
from corosrv.workers.worker.parent.object_asks import ObjectAsks


class RunLocalCall(Protocol):
    """Runs what a handler calls."""

    def __call__(self, call: OutgoingCall, caller: LocalCaller) -> list[ModelInferResponse]:
        """Returns all answers. Waits, and raises what the call ends in."""


class LocalCaller:
    """Fulfils Caller for one call. `waiting`: the groups of the handlers that wait for it, its own one last."""

    def __init__(
        self, run: RunLocalCall, store: ObjectStore, signal: EndSignal, waiting: tuple[tuple[str, int], ...]
    ) -> None:
        self._run = run
        self._objects = ObjectAsks(store, self._keep)
        self._replies: list[ObjectReply] = []
        self.signal = signal
        self.waiting = waiting

    def _keep(self, answer: ObjectAnswer, fds: Sequence[int]) -> None:
        self._replies.append((answer, tuple(map(os.dup, fds))))  # as a message has descriptors of its own

    def ask(self, make_message: MakeObjectAsk, fds: Sequence[int]) -> ObjectReply:
        self.signal.check()
        self._objects.on_message(make_message(1), tuple(map(os.dup, fds)))
        return self._replies.pop()

    @property
    def objects(self) -> Objects:
        return Objects(self.ask)

    def call(self, call: OutgoingCall) -> Iterator[ModelInferResponse]:
        return iter(self.answers(call))

    def answers(self, call: OutgoingCall) -> list[ModelInferResponse]:
        """Returns the answers of a call. Raises errors as a server tells them: HandlerFailed for the unexpected."""
        self.signal.check()
        try:
            return self._run(call, self)
        except Exception as error:
            self.signal.check()
            raise _as_known(error) from error

    def close(self) -> None:
        """Releases the objects that the call has read."""
        self._objects.close()


class LocalAsyncCaller:
    """Fulfils AsyncCaller for the same call: what is called runs in a thread, as the loop must turn."""

    def __init__(self, caller: LocalCaller) -> None:
        self._caller = caller

    @property
    def objects(self) -> AsyncObjects:
        async def ask(make_message: MakeObjectAsk, fds: Sequence[int]) -> ObjectReply:
            return self._caller.ask(make_message, fds)

        return AsyncObjects(ask)

    async def call(self, call: OutgoingCall) -> AsyncIterator[ModelInferResponse]:
        for answer in await asyncio.to_thread(self._caller.answers, call):
            yield answer


def _as_known(error: Exception) -> CorosrvError:
    """Returns an error of a call as the handler that makes the call gets it."""
    kind = failure_kind(error)
    if kind != "failed" or not isinstance(error, CorosrvError):
        error = error_of_failure(kind, str(error))
    return error_of(error.status, error.kind.value, str(error), error.code, error.retry_after)
