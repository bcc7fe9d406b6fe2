"""Wires the parts. `corosrv.app:application` is for gunicorn, `blueprint()` for somebody's own Flask app.

Importing this module starts nothing; asking it for `application` does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from types import FrameType
from typing import Any

from flask import Blueprint, Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound

from corosrv import settings as settings_module
from corosrv.errors import CorosrvError, HttpError, SettingsError
from corosrv.http import front, reply
from corosrv.http.connection import ClientLimits
from corosrv.http.lean_flask import LeanFlask
from corosrv.serving.server import Server
from corosrv.settings import PredictionSettings, Settings

log = logging.getLogger("corosrv")

_NEVER_STARTS = 4  # gunicorn's own status of an app that cannot be loaded: with any other it would try for ever


def blueprint(**overrides: Any) -> Blueprint:
    """Makes a blueprint with everything in it, for `app.register_blueprint(corosrv.blueprint(), url_prefix="/llm")`.

    Settings come from the environment and from `overrides`, by name: `blueprint(model="my.gguf", slots=8)`. The model
    begins to load with the first request that arrives, in the process that it arrives in. Raises SettingsError.

    Which host names the app may be called by is left to the app: `allowed_hosts` is `*` unless it is set.
    """
    settings = settings_module.load(overrides)
    server = replace(settings.server, allowed_hosts=settings.server.allowed_hosts or "*")
    return Server(replace(settings, server=server)).make_blueprint()


def create_app(settings: Settings) -> Flask:
    """Makes a Flask app and starts its parts. Stops gracefully on SIGTERM when made in the main thread."""
    server = Server(settings)
    app = LeanFlask("corosrv")
    app.register_blueprint(server.make_blueprint(has_hooks=False))
    # On the app, so that they hold where no route matches: without a key nobody learns which there are.
    server.add_hooks(app)
    app.register_error_handler(HTTPException, _http_error)
    app.extensions["corosrv"] = server
    server.start()
    if threading.current_thread() is threading.main_thread():
        _stop_on_sigterm(server)
    return app


def _http_error(error: HTTPException) -> Response:
    server: Server = current_app.extensions["corosrv"]
    http_error = HttpError(error.code or 500, _words(error))
    answer = reply.error_response(http_error, server.error_body(http_error))
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            answer.headers[name] = value
    return answer


def _words(error: HTTPException) -> str:
    """Words an HTTP error: what went wrong, and what would work."""
    if isinstance(error, NotFound):
        return f"nothing answers {request.method} at this path: GET /docs lists all paths"
    if isinstance(error, MethodNotAllowed):
        return f"this path does not take {request.method}, only {', '.join(sorted(error.valid_methods or ()))}"
    return error.description or error.name


def _stop_on_sigterm(server: Server) -> None:
    """Stops the server on SIGTERM before the web server's own handler runs, which waits for the streams to end."""
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
        log.warning("unknown setting %s ignored", name)
    try:
        settings = settings_module.load()
        server, predictor = settings.server, settings.predictor
        logging.getLogger("corosrv").setLevel(server.log_level.upper())
        limits = ClientLimits(server.head_timeout_s, server.body_timeout_s, server.body_rate, server.write_timeout_s)
        worker = front.adopt(limits)
        if predictor is not None and worker is not None and worker.cfg.workers > 1:
            raise SettingsError("predictions run in one process: start gunicorn with one worker (-w 1)")
        app = create_app(settings)
        if predictor is not None and worker is not None:
            _end_with(worker, app.extensions["corosrv"], predictor)
        return app
    except CorosrvError as error:
        print(f"corosrv cannot start: {error}", file=sys.stderr)
        sys.exit(_NEVER_STARTS)


def _end_with(worker: front.Front, server: Server, predictor: PredictionSettings) -> None:
    """Lets gunicorn wait for the predictor to end, and POST /shutdown end gunicorn."""
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
