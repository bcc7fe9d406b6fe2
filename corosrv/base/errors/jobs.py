"""Defines errors of running jobs."""

from __future__ import annotations

from corosrv.base.errors.base import CorosrvError
from corosrv.base.errors.calls import DeadlinePassed
from corosrv.base.errors.refused import Refused
from corosrv.base.errors.unavailable import Unavailable


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
