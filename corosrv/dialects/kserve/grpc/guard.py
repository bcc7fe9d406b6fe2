"""Makes handlers of methods: checks the key of every call, counts it, and turns what it raises into a status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from corosrv.base.errors import CorosrvError
from corosrv.dialects.kserve.grpc import metadata, statuses
from corosrv.dialects.kserve.grpc.call_counts import CallCounts
from corosrv.web.http.keys import KeyRing

log = logging.getLogger("corosrv.grpc")

Answer = Callable[[Any, str], Awaitable[Any]]  # of the context and the caller

_DEADLINE_SLACK = 0.25  # seconds by which a client's clock for its call may be ahead
_FAILED = statuses.CallStatus(grpc.StatusCode.INTERNAL, "the call failed; the server's log says why")


class CallGuard:
    """Stands before the methods of all services. Nothing of a request is read before its key was checked."""

    def __init__(self, keys: KeyRing, counts: CallCounts) -> None:
        self._keys = keys
        self._counts = counts

    def unary(self, name: str, answer: Answer, *, is_open: bool = False) -> Any:
        """Makes the handler of a method with one request, which `answer` reads from the context.

        grpcio reads the request of a unary method before it asks anybody, and that of a stream when it is told to.
        """
        return grpc.stream_unary_rpc_method_handler(self._guarded(name, answer, is_open))

    def stream(self, name: str, answer: Answer, *, is_open: bool = False) -> Any:
        """Makes the handler of a method with many answers, which `answer` writes to the context."""
        return grpc.stream_stream_rpc_method_handler(self._guarded(name, answer, is_open))

    def _guarded(self, name: str, answer: Answer, is_open: bool) -> Callable[[Any, Any], Awaitable[Any]]:
        """Checks the key of a call, unless the method is open to all. Counts the call by its method's name."""

        async def handle(_requests: Any, context: Any) -> Any:
            try:
                caller = "" if is_open else metadata.check_key(context.invocation_metadata(), self._keys)
                result = await answer(context, caller)
                self._counts.count(name, grpc.StatusCode.OK)
                return result
            except asyncio.CancelledError:
                self._counts.count(name, _code_of_cancel(context))
                raise
            except statuses.StatusError as error:
                status = error.status
            except CorosrvError as error:
                status = statuses.of_error(error)
            except Exception:
                log.exception("a call could not be answered")
                status = _FAILED
            self._counts.count(name, status.code)
            await context.abort(status.code, status.text, status.trailing)

        return handle


def _code_of_cancel(context: Any) -> grpc.StatusCode:
    """Returns the code of a call that grpcio has cancelled: for its client, or because its time is over.

    The client counts from when it sent the call, and so gives up a little before the time is over here.
    """
    remaining = context.time_remaining()
    is_over = remaining is not None and remaining <= _DEADLINE_SLACK
    return grpc.StatusCode.DEADLINE_EXCEEDED if is_over else grpc.StatusCode.CANCELLED
