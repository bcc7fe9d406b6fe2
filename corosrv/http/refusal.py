"""Answers to what never became a request: no route, no protocol's adapter has seen it."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from gunicorn.http import errors

from corosrv.http.pace import TooSlow


class Overloaded(Exception):
    """As many clients are connected as may be."""


class Refusal(NamedTuple):
    """What the client is told. Never what it sent: that may be a secret, or a script."""

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
    (errors.UnsupportedTransferCoding, Refusal(HTTPStatus.NOT_IMPLEMENTED, "this Transfer-Encoding is not known")),
    (errors.InvalidHTTPVersion, Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.0 and 1.1 are spoken")),
    (errors.ExpectationFailed, Refusal(HTTPStatus.EXPECTATION_FAILED, "only 'Expect: 100-continue' is known")),
    (errors.ForbiddenProxyRequest, Refusal(HTTPStatus.FORBIDDEN, "this address may not speak for others")),
    (errors.InvalidResponseHeader, Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None)),
    (errors.ParseException, Refusal(HTTPStatus.BAD_REQUEST, "this is not a well-formed HTTP/1.1 request")),
    (Overloaded, Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients are connected", "unavailable_error", None)),
    (BaseException, Refusal(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error", "server_error", None)),
)  # fmt: skip


def refusal(error: BaseException) -> Refusal:
    return next(refusal for kind, refusal in _REFUSALS if isinstance(error, kind))


def answer(told: Refusal) -> bytes:
    """The whole answer, after which the connection ends."""
    members = {"message": told.message, "type": told.type, "param": None, "code": told.code}
    content = msgspec.json.encode({"error": members})
    lines = [
        f"HTTP/1.1 {told.status.value} {told.status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        "Connection: close",
        f"X-Request-Id: req_{secrets.token_hex(16)}",
    ]
    if told.status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
