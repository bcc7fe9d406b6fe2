"""Errors of work that was accepted: calls, predictions, jobs of the engine, and the objects that calls refer to.

Code of authors may have run by then. `NotHandedOver` alone promises that none of it has.
"""

from __future__ import annotations

from typing import Any

from corosrv.base.errors.base import CorosrvError, ErrorKind, NotFound, Refused
from corosrv.base.errors.unavailable import Unavailable


class AppError(CorosrvError):
    """An application registers a handler that cannot be served; names the function and says what to do."""


class InvalidTensor(Refused):
    """A tensor is not what its name, datatype and shape say; names it."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"tensor {name[:120]!r} {problem}", name[:120])


class CallRefused(Refused):
    """The handler refused its input; the words are its own."""


class McpServerFailed(Refused):
    """An MCP server that a request names did not list its tools, or lists some that cannot be offered to a model."""

    status = 424

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message, param, "mcp_server_failed")


class Conflict(Refused):
    """The call cannot be made as things stand: two models match alike, or a chain of calls would wait for itself."""

    status = 409
    kind = ErrorKind.CONFLICT


class NotHandedOver(Unavailable):
    """A worker could not be given the call; nothing of it has run there, so that it may go to another."""


class DeadlinePassed(CorosrvError):
    """The call's time was over, while it waited or while it ran."""

    status = 504
    kind = ErrorKind.DEADLINE_PASSED
    code = "deadline_exceeded"
    should_retry = False  # the next try would have the same time, and be computed as far


class EncodeTimedOut(DeadlinePassed):
    """An image took longer to be encoded than the operator allows."""

    code = "image_timeout"


class CallCancelled(CorosrvError):
    """The call was cancelled: by its client, or by its handler."""

    status = 499
    kind = ErrorKind.CLIENT_GONE
    code = "cancelled"


class GroupAborted(CallCancelled):
    """The group of the request was aborted, and there is nothing of its answer that could be given."""

    code = "group_aborted"

    def __init__(self, group: str) -> None:
        super().__init__(f"the group {group[:120]!r} of this request was aborted")


class KeyReused(Refused):
    """An Idempotency-Key came a second time, with another request."""

    status = 422

    def __init__(self) -> None:
        words = "the Idempotency-Key was used for another request; choose a new one"
        super().__init__(words, "Idempotency-Key", "idempotency_key_reused")


class EventsGone(Refused):
    """Events of a stream that a client comes back for are kept no longer."""

    status = 410
    kind = ErrorKind.NOT_FOUND

    def __init__(self, lost: str, first: int | None, param: str | None) -> None:
        """`first`: the first that is kept; None: none is."""
        kept = "" if first is None else f"; the first that is kept is {first}"
        super().__init__(f"{lost} of this stream are kept no longer{kept}", param, "events_gone")


class HandlerFailed(CorosrvError):
    """The handler raised, or returned what it must not. Its own words are in the log, and never in an answer."""

    code = "handler_failed"


class AnswerTooLarge(CorosrvError):
    """The handler's answer is larger than a message may be."""

    kind = ErrorKind.TOO_LARGE
    code = "answer_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the answer is larger than the {limit} bytes that a message may have")


class WorkerLost(CorosrvError):
    """The worker process ended after the call was handed over; the call may have run."""

    status = 502
    kind = ErrorKind.WORKER_LOST
    code = "worker_lost"


class JobFailed(CorosrvError):
    """A job that was taken ended in an error chunk; the message is the chunk's."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class JobRefused(JobFailed, Refused):
    """The request has no answer: no token continues its grammar, its biases ban every token, or its rows overflow."""

    param = None


class JobPutOff(JobFailed, Unavailable):
    """The server ended the job because it is stopping."""


class JobWaitedTooLong(JobFailed, Unavailable):
    """No slot became free for the job in the time that jobs may wait."""

    should_retry = False  # the client has waited long enough


class JobOverdue(JobFailed, DeadlinePassed):
    """The job had begun when its deadline passed; its answer is not whole."""


class ObjectNotFound(NotFound):
    """The store has no such object, or not for this caller."""

    def __init__(self, object_id: str) -> None:
        super().__init__(f"there is no object {object_id[:80]!r} here", "object_ref", "object_not_found")


class ObjectExpired(Refused):
    """The object was here, and its time is over or its place was needed."""

    status = 410
    kind = ErrorKind.NOT_FOUND

    def __init__(self, object_id: str) -> None:
        super().__init__(f"the object {object_id[:80]!r} has expired", "object_ref", "object_expired")


class ObjectTooLarge(Refused):
    """The object is larger than the store takes."""

    status = 413
    kind = ErrorKind.TOO_LARGE

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the object has {size} bytes, where {limit} are allowed", None, "object_too_large")


class StoreFull(CorosrvError):
    """The objects in use fill the store."""

    status = 507
    kind = ErrorKind.UNAVAILABLE
    code = "store_full"
    retry_after = 5

    def __init__(self, limit: int) -> None:
        super().__init__(f"the objects in use fill the {limit} bytes that the store has; try again later")


class InvalidInput(Refused):
    """Fields of a prediction's request are wrong: `errors` has `loc`, `msg` and `type` of each."""

    status = 422

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in errors))
        self.errors = errors


class NotStreamed(Refused):
    """The request wants an event stream, and the predictor has not opted in."""

    status = 406

    def __init__(self) -> None:
        super().__init__("This model does not support streaming responses: it opts in with @streaming", None)


class IdTaken(Refused):
    """The id belongs to another prediction, which runs, or has ended and is remembered."""

    status = 409

    def __init__(self, message: str) -> None:
        super().__init__(message, "id", "id_taken")


class TooManyReaders(Refused):
    """Too many clients read the events of a prediction."""

    status = 429

    def __init__(self, limit: int) -> None:
        super().__init__(f"this prediction already has {limit} event readers, which is the limit", None)


class NoCapacity(Unavailable):
    """Every slot is busy, and the request does not wait."""

    status = 409

    def __init__(self, message: str = "the predictor is at capacity: all its slots are busy") -> None:
        super().__init__(message)


class WorkerGone(Unavailable):
    """The predictor's process ended, or was never set up. Nothing helps until an operator has acted."""

    retry_after = None


class RedirectRefused(CorosrvError):
    """An answer redirects one of our own requests to an address where it must not go, or too often."""


class DestinationRefused(CorosrvError):
    """One of our own requests would go to an address that no client may choose; says why."""


class LoadError(CorosrvError):
    """The predictor cannot be found, or does not fit its number of slots."""


class SignatureError(CorosrvError):
    """A predictor's inputs or output cannot be read; says which."""


class InputFailed(CorosrvError):
    """An input could not be fetched or decoded; names it, and the status or cause."""


class OutputFailed(CorosrvError):
    """An output could not be sent: no JSON value, a file that is not there, a failed upload."""
