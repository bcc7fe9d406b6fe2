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
from collections.abc import Callable
from types import FrameType
from typing import Any

import gevent
from flask import Blueprint, Flask, Response, current_app, g, has_request_context, request
from gevent._hub_local import get_hub_if_exists
from werkzeug.exceptions import HTTPException

from corosrv import settings as settings_module
from corosrv.anthropic import routes as anthropic
from corosrv.docs import routes as docs
from corosrv.errors import CorosrvError
from corosrv.generation.exchange import Desk, Limits
from corosrv.generation.fields import Defaults
from corosrv.http import access, connection, front, health, loading, metrics, operation
from corosrv.http.client import ClientWatch
from corosrv.http.llamacpp_metrics import LlamaCollector
from corosrv.llamacpp import routes as llamacpp_routes
from corosrv.llamacpp.props import Switches
from corosrv.models import ModelPool
from corosrv.openai import errors, routes, shapes
from corosrv.openai.embeddings import routes as embedding_routes
from corosrv.openai.rerank import routes as rerank_routes
from corosrv.openai.responses import routes as responses
from corosrv.openai.responses.store import ResponseStore
from corosrv.settings import Settings

log = logging.getLogger("corosrv")


class Server:
    """One process's worth of corosrv: its models, and the blueprint in front of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.worker = ModelPool(settings, watch=_watch)
        self._stats = metrics.HttpStats()
        self._stats.registry.register(metrics.EngineCollector(self.worker))
        self._stats.registry.register(LlamaCollector(self.worker))
        self._keys = access.Keys(settings.keys)
        self._origins = access.Origins(settings.origins)
        self._is_started = False
        self._has_told = False
        self._started_at = int(time.time())
        self.blueprint = self._blueprint()

    def start(self) -> None:
        """Begins to load the first model, in the process that will serve; returns at once. Twice is harmless."""
        if self._is_started:
            return
        self._is_started = True
        atexit.register(self.worker.close)
        self.worker.start()

    def stop(self) -> None:
        """Refuses new jobs; gives running ones `drain_s` to finish, then ends them with an error event.

        Asked a second time, it ends them at once.
        """
        if self.worker.state.value == "draining":
            self.worker.drain()
            return
        self.worker.stop_accepting()
        log.info("stopping: running streams get %g s to finish", self.settings.drain_s)
        if get_hub_if_exists() is not None:
            gevent.spawn_later(self.settings.drain_s, self.worker.drain)
        else:
            timer = threading.Timer(self.settings.drain_s, self.worker.drain)
            timer.daemon = True
            timer.start()

    def _blueprint(self) -> Blueprint:
        settings = self.settings
        desk = Desk(
            worker=self.worker,
            defaults=Defaults(
                max_tokens=None if settings.n_predict == -1 else settings.n_predict,
                temperature=settings.temp,
                seed=None if settings.seed == -1 else settings.seed,
                context_shift=settings.context_shift,
            ),
            limits=Limits(
                max_body_bytes=settings.max_body_bytes,
                ping_interval=settings.sse_ping_interval,
                write_timeout=settings.write_timeout_s,
            ),
            stats=self._stats,
        )
        switches = Switches(settings.slots_endpoint, settings.props, settings.metrics, settings.slot_save_path)
        whole = Blueprint("corosrv", __name__)
        whole.register_blueprint(routes.blueprint(desk))
        whole.register_blueprint(docs.blueprint(shapes.ErrorAnswer, bool(settings.keys)))
        whole.register_blueprint(responses.blueprint(desk, ResponseStore(settings.response_store_bytes)))
        whole.register_blueprint(anthropic.blueprint(desk))
        whole.register_blueprint(embedding_routes.blueprint(desk, settings.embeddings))
        whole.register_blueprint(rerank_routes.blueprint(desk))
        whole.register_blueprint(llamacpp_routes.blueprint(desk, self.worker, switches))
        whole.register_blueprint(health.blueprint(self.worker))
        whole.register_blueprint(loading.blueprint(self.worker, settings.max_body_bytes))
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
            if not settings.metrics:
                return errors.http_response(501, "metrics are switched off (COROSRV_METRICS=0)")
            answer = Response(metrics.exposition(self._stats), content_type=metrics.CONTENT_TYPE)
            answer.headers["Process-Start-Time-Unix"] = str(self._started_at)
            return answer

        return whole

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
    return Server(settings_module.load(overrides)).blueprint


def create_app(settings: Settings) -> Flask:
    """A Flask app of its own, loading its model. Stops gracefully on SIGTERM when made in the main thread."""
    server = Server(settings)
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


def _watch(on_gone: Callable[[], None]) -> ClientWatch:
    """Of the request at hand, if there is one."""
    return ClientWatch(request.environ if has_request_context() else {}, on_gone)


def _http_error(error: HTTPException) -> Response:
    answer = errors.http_response(error.code or 500, error.description or error.name)
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            answer.headers[name] = value
    return answer


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
        settings = settings_module.load()
        front.adopt(connection.Limits(settings.head_timeout_s, settings.body_timeout_s, settings.body_rate))
        return create_app(settings)
    except CorosrvError as error:
        sys.exit(f"corosrv cannot start: {error}")


def __getattr__(name: str) -> Any:
    if name == "application":
        globals()["application"] = application = _make_application()
        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
