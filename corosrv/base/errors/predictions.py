"""Defines errors of predictions and their predictor."""

from __future__ import annotations

from typing import Any

from corosrv.base.errors.base import CorosrvError, Refused
from corosrv.base.errors.unavailable import Unavailable


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
