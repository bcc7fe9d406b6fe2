"""Names what may become of a call to an upstream, beside an answer."""

from __future__ import annotations

import math

from corosrv.base.errors import ErrorKind, NotHandedOver, WorkerLost
from corosrv.fleet.upstreams.answer_body import BadAnswer


class UpstreamBusy(NotHandedOver):
    """An upstream takes no call for some seconds, and says so itself."""

    status = 429
    kind = ErrorKind.RATE_LIMITED
    code = "upstreams_busy"

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.retry_after = math.ceil(seconds)


class UpstreamDown(NotHandedOver):
    """An upstream could not be given a call, which is its fault."""

    def __init__(self, message: str, seconds: float = 0.0) -> None:
        """`seconds`: for which it has asked to be left alone."""
        super().__init__(message)
        self.seconds = seconds
        self.retry_after = max(math.ceil(seconds), 1)


class UpstreamLost(WorkerLost):
    """An upstream broke off a call that it had."""


class UpstreamSilent(UpstreamLost):
    """An upstream has not said in time what it was asked for; it may be slow, or gone with its whole machine."""


class UpstreamRemoved(UpstreamLost):
    """An upstream was removed while it ran a call, which is no fault of it."""


def words_of(error: BaseException) -> str:
    """Says what went wrong with a connection, by the system's words where it was the system."""
    if isinstance(error, BadAnswer):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
