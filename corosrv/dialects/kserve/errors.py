"""Writes errors in the shape of the v2 protocol."""

from __future__ import annotations

import msgspec
from flask import Response
from flask.sansio.scaffold import Scaffold

from corosrv.base.errors import CorosrvError, ShuttingDown
from corosrv.web.http.reply import error_response


class KserveError(msgspec.Struct):
    """Is the body of every error of the v2 protocol."""

    error: str


def error_body(error: CorosrvError) -> KserveError:
    return KserveError(str(error))


def has_path(path: str) -> bool:
    """Returns whether errors at this path have the shape of the v2 protocol."""
    return path == "/v2" or path.startswith("/v2/")


def answer_error(error: CorosrvError, request_line: str = "") -> Response:
    """Makes the answer for an error. `request_line`: method and path, where no request of Flask's is at hand."""
    answer = error_response(error, error_body(error), request_line)
    if isinstance(error, ShuttingDown):
        answer.headers["Connection"] = "close"
    return answer


def register_errors(routes: Scaffold) -> None:
    """Gives errors of these routes the shape of the v2 protocol."""
    routes.register_error_handler(CorosrvError, lambda error: answer_error(error))
