"""Errors in the shape of predictions: the one place where what happened becomes an error object."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response

from corosrv import errors
from corosrv.http import reply


def body(error: errors.CorosrvError) -> dict[str, Any]:
    """`{"detail": [...]}` where fields are at fault, else `{"error": text}`, of 409 and 503 with a status, too."""
    if isinstance(error, errors.InvalidInput):
        return {"detail": error.errors}
    return _members(str(error), reply.status(error))


def _members(message: str, status: int) -> dict[str, Any]:
    return {"error": message, "status": "failed"} if status in (409, 503) else {"error": message}


def response(error: errors.CorosrvError) -> Response:
    """The error as an answer with its status and headers."""
    return reply.error_response(error, body(error))


def register(routes: Blueprint) -> None:
    """Gives the errors of these routes this shape; logs what is not the client's doing."""
    routes.register_error_handler(errors.CorosrvError, reply.handler(response))


def http_response(status: int, message: str) -> Response:
    """An error of HTTP itself: an unknown path, a wrong verb."""
    return reply.json_response(_members(message, status), status)
