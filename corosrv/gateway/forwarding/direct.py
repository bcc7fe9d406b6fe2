"""Answers plain requests for upstreams without Flask, whose share of a short chat would be a quarter.

Plain is what asks for nothing that Flask's hooks and decorators of views do: no key of idempotency, no conversation to
resume, no group, no page of a browser, no coding of the body. What fails here, Flask answers: errors have one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

from werkzeug.http import HTTP_STATUS_CODES

from corosrv.contracts.idempotency import HEADER
from corosrv.gateway.forwarding.answers import PassedAnswer
from corosrv.gateway.forwarding.forwarder import Forwarder
from corosrv.gateway.forwarding.peek import BY_PATH
from corosrv.web.groups.routes import GROUP
from corosrv.web.http.lean_flask import BareRequest, Visit
from corosrv.web.kept.streams import CONVERSATION_FIELD


def _field(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


_NOT_PLAIN = frozenset({
    _field(HEADER), _field(GROUP), CONVERSATION_FIELD, _field("Origin"), _field("Content-Encoding"),
})  # fmt: skip
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_OF_STREAMS = (("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no"))
_UNTYPED = ("Content-Type", "text/html; charset=utf-8")  # what Flask makes of an answer that has no type


class Gate(Protocol):
    """The checks of every request, and what every answer has."""

    def open(self, request: BareRequest) -> Visit | None:
        """Begins a visit, which is to be left or to get an error; None where Flask has to begin it."""

    def admit(self, request: BareRequest, visit: Visit) -> None:
        """Lets a visitor in. May wait; raises CorosrvError."""

    def headers(self, visit: Visit) -> list[tuple[str, str]]:
        """Returns what the answer gets besides its own headers."""

    def leave(self, request: BareRequest, visit: Visit, route: str, status: int) -> None:
        """Ends a visit that was answered; its stream may have begun. `status` 0: it was not."""


class DirectForwarding:
    """Forwards plain requests: a Shortcut of a LeanFlask."""

    def __init__(self, forwarder: Forwarder, gate: Gate) -> None:
        self._forwarder = forwarder
        self._gate = gate

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        path = BY_PATH.get(environ["PATH_INFO"])
        if path is None or not _is_plain(environ):
            return None
        request, gate = BareRequest(environ), self._gate
        if (visit := gate.open(request)) is None:
            return None
        try:
            gate.admit(request, visit)
            answer = self._forwarder.forward_directly(path, request, visit)
            headers = gate.headers(visit)
        except Exception as error:
            visit.error = error
            return None
        except BaseException:
            gate.leave(request, visit, path.path, 0)
            raise
        gate.leave(request, visit, path.path, answer.status)
        return _begin(answer, headers, environ, start_response)


def _is_plain(environ: Mapping[str, Any]) -> bool:
    return (
        environ["REQUEST_METHOD"] == "POST"
        and not environ.get("SCRIPT_NAME")
        and environ.keys().isdisjoint(_NOT_PLAIN)
        and "CONTENT_LENGTH" in environ
    )


def _begin(
    answer: PassedAnswer, more: list[tuple[str, str]], environ: dict[str, Any], start_response: Any
) -> Iterable[bytes]:
    """Says the status and the headers, and returns the body."""
    status, body = answer.status, answer.body
    names = {name.lower() for name, _ in answer.headers}
    if status < HTTPStatus.OK or status in _WITHOUT_BODY or "location" in names:
        response = answer.response()
        response.headers.extend(more)
        return response(environ, start_response)
    headers = [*answer.headers, *more]
    if isinstance(body, bytes):
        if "content-type" not in names:
            headers.append(_UNTYPED)
        headers.append(("Content-Length", str(len(body))))
        start_response(_status_line(status), headers)
        return [body]
    headers += [field for field in _OF_STREAMS if field[0].lower() not in names]
    start_response(_status_line(status), headers)
    body.begin(start_response)
    return body


@lru_cache(64)
def _status_line(status: int) -> str:
    return f"{status} {HTTP_STATUS_CODES.get(status, 'unknown').upper()}"
