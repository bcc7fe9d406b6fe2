"""A bare route that gives back the body, for gunicorn: the least that a call over HTTP can cost here."""

from __future__ import annotations

from flask import Flask, Response, request

application = Flask("bare")


@application.post("/echo")
def echo() -> Response:
    """Gives back the body."""
    return Response(request.get_data(), content_type="application/octet-stream")
