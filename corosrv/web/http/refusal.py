"""Answers to clients whose bytes never became a request, so that no route and no protocol has seen them."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

import msgspec
from gunicorn.http import errors

from corosrv.contracts.jobs.job import new_id
from corosrv.web.http.pace import TooSlow


class Overloaded(Exception):
    """The limit of connected clients is reached.

    No CorosrvError: it is raised and answered before there is a request, which every protocol's errors belong to.
    """


class Refusal(NamedTuple):
    """The answer to such a client. It never quotes what the client sent: that may be a secret, or a script."""

    status: HTTPStatus
    message: str
    type: str = "invalid_request_error"
    code: str | None = "invalid_http"


# The first class that matches decides, so that the narrower stand above the wider.
_REFUSALS: tuple[tuple[type[BaseException], Refusal], ...] = (
    (TooSlow, Refusal(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time", code="request_timeout")),
    (errors.LimitRequestLine, Refusal(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")),
    (
        errors.LimitRequestHeaders,
        Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the header fields are too many or too long"),
    ),
    (
        errors.UnsupportedTransferCoding,
        Refusal(HTTPStatus.NOT_IMPLEMENTED, "unknown Transfer-Encoding: only chunked is supported"),
    ),
    (
        errors.InvalidHTTPVersion,
        Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "unsupported HTTP version: use HTTP/1.0 or 1.1"),
    ),
    (
        errors.ExpectationFailed,
        Refusal(HTTPStatus.EXPECTATION_FAILED, "unsupported Expect header: only 100-continue is supported"),
    ),
    (
        errors.ForbiddenProxyRequest,
        Refusal(HTTPStatus.FORBIDDEN, "the PROXY protocol is not allowed from this address"),
    ),
    (
        errors.InvalidResponseHeader,
        Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None),
    ),
    (errors.ParseException, Refusal(HTTPStatus.BAD_REQUEST, "the request is not well-formed HTTP/1.1")),
    (Overloaded, Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients are connected", "unavailable_error", None)),
    (BaseException, Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None)),
)


def refusal(error: BaseException) -> Refusal:
    return next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))


def answer(refusal: Refusal) -> bytes:
    """Makes the whole answer, after which the connection ends."""
    members = {"message": refusal.message, "type": refusal.type, "param": None, "code": refusal.code}
    content = msgspec.json.encode({"error": members})
    lines = [
        f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
        f"X-Request-Id: {new_id('req_')}",
    ]
    if refusal.status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
