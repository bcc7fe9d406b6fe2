"""Defines errors of HTTP and of access, which are raised before a dialect sees the request."""

from __future__ import annotations

from corosrv.base.errors.base import CorosrvError, ErrorKind


class HttpError(CorosrvError):
    """An error of HTTP itself: an unknown path, a wrong method."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = _HTTP_KINDS.get(status, ErrorKind.INVALID_REQUEST if status < 500 else ErrorKind.FAILED)
        self.code = "method_not_allowed" if status == 405 else None


_HTTP_KINDS = {404: ErrorKind.NOT_FOUND, 501: ErrorKind.NOT_OFFERED}


class Unauthorized(CorosrvError):
    """The request has no key, or an unknown one."""

    status = 401
    kind = ErrorKind.UNAUTHORIZED
    code = "invalid_api_key"
    ends_connection = True


class Forbidden(CorosrvError):
    """A web page without permission, or a host name that is not this server's; `code` says which."""

    status = 403
    kind = ErrorKind.FORBIDDEN
    ends_connection = True

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class LoopDetected(CorosrvError):
    """The request has passed this replica before, on its way from peer to peer."""

    status = 508
    kind = ErrorKind.FAILED
    code = "loop_detected"


class ClientGone(CorosrvError):
    """The client left before its answer was ready; nobody will read the answer."""

    status = 499
    kind = ErrorKind.CLIENT_GONE
