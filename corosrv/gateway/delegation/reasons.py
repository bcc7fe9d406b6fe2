"""Says which errors of this server leave a request for its peers: those that promise that nothing of it has run."""

from __future__ import annotations

from enum import Enum

from corosrv.base.errors import (
    CorosrvError,
    HttpError,
    InvalidTrip,
    ModelFailed,
    ModelNotFound,
    NoCapacity,
    NotFound,
    NotHandedOver,
    NoWorker,
    QueueFull,
    Refused,
    Starting,
    WorkerGone,
)
from corosrv.fleet.upstreams.failures import UpstreamBusy

_UNKNOWN_CODES = frozenset({"model_not_found", "capability_not_found", "no_match"})


class Reason(str, Enum):
    """Reasons why this server cannot serve a call."""

    UNKNOWN = "unknown"  # there is no such thing here
    UNAVAILABLE = "unavailable"  # nothing here runs it now
    FULL = "full"  # it would have to wait, and must not


def reason_of(error: CorosrvError) -> Reason | None:
    """Returns why a call that ended in this error was not served; None if the error is an answer.

    Errors that code of users raises are answers, whatever their status.
    """
    if isinstance(error, (QueueFull, NoCapacity, UpstreamBusy)):
        return Reason.FULL
    if isinstance(error, (Starting, ModelFailed, NoWorker, WorkerGone, NotHandedOver)):
        return Reason.UNAVAILABLE
    if isinstance(error, ModelNotFound) or (isinstance(error, NotFound) and error.code in _UNKNOWN_CODES):
        return Reason.UNKNOWN
    return Reason.UNKNOWN if isinstance(error, HttpError) and error.status == 404 else None


def is_refused_body(error: CorosrvError) -> bool:
    """Tells whether a body was refused by what this server can read or do, before its model was looked for."""
    return isinstance(error, Refused) and not isinstance(error, InvalidTrip) and error.status in (400, 501)


def is_for_peers(error: CorosrvError, *, on_full: bool) -> bool:
    """Tells whether a call that ended in this error may go to a peer. `on_full`: also those that found a full queue."""
    reason = reason_of(error)
    return reason is not None and (on_full or reason is not Reason.FULL)
