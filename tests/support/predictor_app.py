"""A Flask app with nothing but predictions, for gunicorn; PREDICTIONS holds its settings as JSON."""

from __future__ import annotations

import json
import logging
import os
import signal
from typing import Any

import gevent
from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from corosrv.http import connection, front
from corosrv.http.metrics import HttpStats
from corosrv.predictions import errors, routes
from corosrv.predictions.service import PredictionService
from corosrv.predictions.settings import PredictionSettings
from corosrv.worker.orchestrator import PredictorProcess, WorkerConfig

logging.basicConfig(level=logging.INFO)

options: dict[str, Any] = json.loads(os.environ["PREDICTIONS"])
ping_interval = options.pop("ping_interval", 15.0)
settings = PredictionSettings(**options)
front.adopt(connection.Limits())
worker = PredictorProcess(
    WorkerConfig(predictor=settings.predictor, slots=settings.slots, setup_timeout=settings.setup_timeout or None)
)
service = PredictionService(worker, settings)


def shut_down() -> None:
    def stop() -> None:
        service.shutdown()
        os.kill(os.getppid(), signal.SIGTERM)

    gevent.spawn(stop)


app = Flask("predictions", static_folder=None)
app.register_blueprint(routes.blueprint(service, HttpStats(), shut_down, ping_interval=ping_interval))


@app.errorhandler(HTTPException)
def refuse(error: HTTPException) -> Response:
    answer = errors.http_response(error.code or 500, error.description or error.name)
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            answer.headers[name] = value
    return answer


worker.start()
