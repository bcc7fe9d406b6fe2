"""Wires the parts. `corosrv.app:application` is for gunicorn, `blueprint()` for somebody's own Flask app.

Importing this module starts nothing; asking it for `application` does.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from types import FrameType
from typing import Any

from flask import Blueprint, Flask, Response, current_app, g, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from corosrv import settings as settings_module
from corosrv.docs import routes as docs
from corosrv.errors import CorosrvError, SettingsError
from corosrv.http import access, connection, front, health, metrics, operation
from corosrv.llamacpp.metrics import typed_as_there
from corosrv.model_part import ModelPart
from corosrv.openai import errors, shapes
from corosrv.prediction_settings import PredictionSettings
from corosrv.predictions import errors as prediction_errors
from corosrv.predictor_part import PredictorPart
from corosrv.settings import Settings
from corosrv.whole import Whole

log = logging.getLogger("corosrv")

_NEVER_STARTS = 4  # gunicorn's own status of an app that cannot be loaded: with any other it would try for ever


class Server:
    """One process's worth of corosrv: its models, its predictor, and the blueprint in front of them."""

    def __init__(self, settings: Settings, predictor: PredictionSettings | None = None) -> None:
        self.settings = settings
        self._stats = metrics.HttpStats()
        self.models = ModelPart(settings, self._stats) if settings.has_model else None
        self.predictor = PredictorPart(predictor, settings, self._stats) if predictor is not None else None
        self.parts = [part for part in (self.models, self.predictor) if part is not None]
        for collector in chain.from_iterable(part.collectors() for part in self.parts):
            self._stats.registry.register(collector)
        self._keys = access.Keys(settings.keys)
        self._origins = access.Origins(settings.origins)
        self._is_started = False
        self._has_told = False
        self._started_at = int(time.time())
        self.on_shutdown: Callable[[], None] = self.stop  # what POST /shutdown does
        self.blueprint = self._blueprint()

    def start(self) -> None:
        """Begins to load the first model and to set the predictor up, in the process that will serve; returns at once.

        Twice is harmless.
        """
        if self._is_started:
            return
        self._is_started = True
        for part in self.parts:
            atexit.register(part.close)
            part.start()

    def stop(self) -> None:
        """Refuses what is new and lets what runs end, in its time. Asked a second time, it ends that at once."""
        for part in self.parts:
            part.stop()

    def _blueprint(self) -> Blueprint:
        whole = Blueprint("corosrv", __name__)
        for routes in self._routes():
            whole.register_blueprint(routes)
        whole.before_request(self.before)
        whole.after_request(self.after)
        whole.teardown_request(self.done)
        whole.register_error_handler(CorosrvError, errors.response)

        @whole.get("/metrics")
        @operation.operation(
            "Server",
            "Count what was done",
            "Prometheus' text form: every part's counters, by model where they are a model's.",
            media_type="text/plain",
            statuses=(501,),
        )
        def exposition() -> Response:
            if not self.settings.metrics:
                return errors.http_response(501, "metrics are switched off (COROSRV_METRICS=0)")
            answer = Response(typed_as_there(metrics.exposition(self._stats)), content_type=metrics.CONTENT_TYPE)
            answer.headers["Process-Start-Time-Unix"] = str(self._started_at)
            return answer

        return whole

    def _routes(self) -> Iterator[Blueprint]:
        yield health.blueprint(Whole(self.parts))
        yield docs.page()
        needs_key = bool(self.settings.keys)
        if self.models is not None:
            yield from self.models.blueprints()
            beside = self.predictor.document if self.predictor is not None else None
            yield docs.document(shapes.ErrorAnswer, needs_key, beside)
        if self.predictor is not None:
            yield self.predictor.blueprint(lambda: self.on_shutdown(), has_document=self.models is None)

    def before(self) -> None:
        """What every request has to pass. Once, also where the blueprint's hook and the app's both apply."""
        if "corosrv_caller" in g:
            return
        self.start()
        if not self._has_told and request.environ.get("wsgi.multiprocess"):
            self._has_told = True
            log.warning("several workers: process %d has an engine and a model of its own", os.getpid())
        g.corosrv_is_busy = True
        self._stats.began()
        g.corosrv_request_id = access.request_id(request)
        is_open = request.method == "OPTIONS" or operation.is_open(
            current_app.view_functions.get(request.endpoint or "")
        )
        g.corosrv_caller = "" if is_open else self._keys.check(request)

    def done(self, error: BaseException | None) -> None:
        """The request is over, or its stream has begun."""
        if g.pop("corosrv_is_busy", False):
            self._stats.ended()

    def after(self, response: Response) -> Response:
        """Adds what every answer has. Once, also where the blueprint's hook and the app's both apply."""
        if g.get("corosrv_is_answered"):
            return response
        g.corosrv_is_answered = True
        response.headers["X-Request-Id"] = g.get("corosrv_request_id") or access.request_id(request)
        self._origins.allow(request, response)
        route = request.url_rule.rule if request.url_rule else "none"
        self._stats.answered(route, response.status_code)
        return response


def blueprint(**overrides: Any) -> Blueprint:
    """Everything under one blueprint, for `app.register_blueprint(corosrv.blueprint(), url_prefix="/llm")`.

    Settings come from the environment and from `overrides`, by name: `blueprint(model="my.gguf", slots=8)`. The model
    begins to load with the first request that arrives, in the process that it arrives in. Raises SettingsError.
    """
    return Server(settings_module.load(overrides), settings_module.load_predictor(overrides)).blueprint


def create_app(settings: Settings, predictor: PredictionSettings | None = None) -> Flask:
    """A Flask app of its own, starting its parts. Stops gracefully on SIGTERM when made in the main thread."""
    server = Server(settings, predictor)
    app = Flask("corosrv", static_folder=None)
    app.register_blueprint(server.blueprint)
    # Also where no route matches: without a key nobody learns which there are.
    app.before_request(server.before)
    app.after_request(server.after)
    app.teardown_request(server.done)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(CorosrvError, errors.response)
    app.extensions["corosrv"] = server
    server.start()
    if threading.current_thread() is threading.main_thread():
        _stop_on_sigterm(server)
    return app


def _http_error(error: HTTPException) -> Response:
    server: Server = current_app.extensions["corosrv"]
    is_prediction = server.predictor is not None and (server.models is None or server.predictor.has_path(request.path))
    shape = prediction_errors.http_response if is_prediction else errors.http_response
    answer = shape(error.code or 500, _words(error))
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            answer.headers[name] = value
    return answer


def _words(error: HTTPException) -> str:
    """What went wrong, and what would go right."""
    if isinstance(error, NotFound):
        return f"there is nothing at this path for {request.method}: GET /docs shows what there is"
    if isinstance(error, MethodNotAllowed):
        return f"{request.method} is not offered at this path: {', '.join(sorted(error.valid_methods or ()))}"
    return error.description or error.name


def _stop_on_sigterm(server: Server) -> None:
    """Before whatever the web server does on SIGTERM: it waits for the streams, and this ends the last of them."""
    previous = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        server.stop()
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_sigterm)


def _make_application() -> Flask:
    logging.getLogger("corosrv").setLevel(logging.INFO)
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(process)d] [%(levelname)s] %(message)s"))
        logging.getLogger("corosrv").addHandler(handler)
    for name in settings_module.unknown_variables(os.environ):
        log.warning("%s is no setting of corosrv and is ignored", name)
    try:
        settings, predictor = settings_module.load(), settings_module.load_predictor()
        worker = front.adopt(
            connection.Limits(
                settings.head_timeout_s, settings.body_timeout_s, settings.body_rate, settings.write_timeout_s
            )
        )
        if predictor is not None and worker is not None and worker.cfg.workers > 1:
            raise SettingsError("predictions live in one process: start gunicorn with one worker (-w 1)")
        app = create_app(settings, predictor)
        if predictor is not None and worker is not None:
            _end_with(worker, app.extensions["corosrv"], predictor)
        return app
    except CorosrvError as error:
        print(f"corosrv cannot start: {error}", file=sys.stderr)
        sys.exit(_NEVER_STARTS)


def _end_with(worker: front.Front, server: Server, predictor: PredictionSettings) -> None:
    """Ties gunicorn's end to the predictor's: neither leaves the other behind."""
    assert server.predictor is not None
    worker.endings.append(server.predictor)
    # A terminal interrupts everybody; the master passes on what this process is to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    number = signal.SIGINT if predictor.await_explicit_shutdown else signal.SIGTERM
    server.on_shutdown = lambda: os.kill(worker.ppid, number)


def __getattr__(name: str) -> Any:
    if name == "application":
        globals()["application"] = application = _make_application()
        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
