"""Somebody's own Flask app with keys, error pages and hooks of its own, and corosrv within a blueprint of theirs.

`gunicorn -k gevent tests.serve.own_app:app`; OWN_APP_STARTS=0 leaves the load to the first request.
"""

from __future__ import annotations

import os

from flask import Blueprint, Flask, Response, g, request
from werkzeug.exceptions import HTTPException

import corosrv

app = Flask(__name__)
api = Blueprint("api", __name__)


@app.before_request
def check_visitor() -> tuple[dict[str, str], int] | None:
    g.visitor = request.headers.get("X-Visitor")
    return None if g.visitor else ({"own": "who are you?"}, 401)


@app.after_request
def greet(response: Response) -> Response:
    response.headers["X-Own"] = g.visitor or "stranger"
    return response


@app.errorhandler(HTTPException)
def own_page(error: HTTPException) -> tuple[dict[str, str | None], int]:
    return {"own": error.name}, error.code or 500


@app.errorhandler(Exception)
def own_failure(error: Exception) -> tuple[dict[str, str], int]:
    return {"own": type(error).__name__}, 500


@api.get("/ping")
def ping() -> dict[str, str]:
    return {"pong": g.visitor}


@api.get("/fault")
def fault() -> None:
    raise KeyError("of the app's own")


api.register_blueprint(corosrv.blueprint(), url_prefix="/llm")
app.register_blueprint(api, url_prefix="/api")
if os.environ.get("OWN_APP_STARTS") != "0":
    corosrv.start(app)
