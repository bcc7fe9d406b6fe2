"""Somebody's own Flask app with a predictor in it: `gunicorn -k gevent tests.serve.predictor_app:app`."""

from __future__ import annotations

import os

from flask import Flask

import corosrv

app = Flask(__name__)
app.register_blueprint(corosrv.blueprint(predictor=os.environ.pop("COROSRV_PREDICTOR")), url_prefix="/mine")


@app.get("/ping")
def ping() -> dict[str, bool]:
    return {"pong": True}
