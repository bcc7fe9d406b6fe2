"""Wires the parts. `corosrv.app:application` is for gunicorn, `blueprint()` for somebody's own Flask app.

Importing this module starts nothing; asking it for `application` does.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from flask import Blueprint, Flask, Response, current_app, request
from flask.helpers import get_debug_flag
from gevent import monkey
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.serving import is_running_from_reloader
from werkzeug.utils import redirect

from corosrv.base.errors import CorosrvError, HttpError, SettingsError
from corosrv.base.json_log import JsonFormatter
from corosrv.base.run_dir import default_path, open_run_dir
from corosrv.contracts import settings as settings_module
from corosrv.contracts.settings import PredictionSettings, Settings
from corosrv.serving.server import Server
from corosrv.web.http import reply, worker_watch
from corosrv.web.http.lean_flask import LeanFlask
from corosrv.web.http.terms import nearest_route
from corosrv.web.http.worker_watch import NEVER_STARTS

if TYPE_CHECKING:
    from corosrv.web.http.front import Front
    from corosrv.web.http.siblings import Siblings

log = logging.getLogger("corosrv")

_MOUNTED = "corosrv.mounted"  # of an app's extensions: the servers whose blueprints it has
_PARTS_OF_ONE = 2  # of a server that serves an application alone, or models: themselves, and KServe's protocol


def blueprint(**overrides: Any) -> Blueprint:
    """Makes a blueprint with everything in it, for `app.register_blueprint(corosrv.blueprint(), url_prefix="/llm")`.

    Settings come from the environment and from `overrides`, by name: `blueprint(model="my.gguf", slots=8)`. The model
    begins to load with `corosrv.start(app)`, or else with the first request that arrives, in the process that serves
    it; requests wait until it is loaded. Raises SettingsError.

    Which host names the app may be called by, and by which pages of other origins, is left to the app: `allowed_hosts`
    is `*`, and without `cors_origins` no origin is refused and no cross-origin header added.
    """
    settings = settings_module.load(overrides)
    server = replace(settings.server, allowed_hosts=settings.server.allowed_hosts or "*")
    settings = replace(settings, server=server)
    worker = worker_watch.serving_worker()
    is_one_of_several = worker is not None and worker.cfg.workers > 1 and not worker.booted
    if is_one_of_several:
        settings = _for_several(settings, worker)
    mounted = Server(settings, is_mounted=True)
    if is_one_of_several:
        _know_others(mounted, worker)
    routes = mounted.make_blueprint()
    routes.record_once(lambda state: state.app.extensions.setdefault(_MOUNTED, []).append(mounted))
    return routes


def start(app: Flask) -> None:
    """Begins to load the models of every `corosrv.blueprint()` that was registered with an app; returns at once.

    To be called where the app is made, in the process that will serve. Commands of Flask that do not serve, and the
    process that only watches files for `flask run --debug`, load nothing. Raises SettingsError without a blueprint.
    """
    mounted: list[Server] = app.extensions.get(_MOUNTED, [])
    if not mounted:
        raise SettingsError("register corosrv.blueprint() with the app before corosrv.start(app)")
    if _is_served_by_flask_elsewhere():
        return
    for server in mounted:
        server.start()


def _is_served_by_flask_elsewhere() -> bool:
    """Tells whether Flask's command line has made the app, and this process will not serve it."""
    command = click.get_current_context(silent=True)
    if command is None or os.environ.get("FLASK_RUN_FROM_CLI") != "true":
        return False
    if command.info_name != "run":
        return True
    reloads = command.params.get("reload")
    return bool(get_debug_flag() if reloads is None else reloads) and not is_running_from_reloader()


def create_app(settings: Settings) -> Flask:
    """Makes a Flask app and starts its parts. Stops gracefully on SIGTERM when made in the main thread."""
    server = Server(settings)
    app = LeanFlask("corosrv")
    app.register_blueprint(server.make_blueprint(has_hooks=False))
    # On the app, so that they hold where no route matches: without a key nobody learns which there are.
    server.add_hooks(app)
    app.register_error_handler(HTTPException, _http_error)
    app.extensions["corosrv"] = server
    if (shortcut := server.shortcut()) is not None:
        app.take_shortcut(shortcut)
    if settings.server.api_prefix:
        app.wsgi_app = _below(settings.server.api_prefix, app.wsgi_app, server)  # type: ignore[method-assign]
    server.start()
    if threading.current_thread() is threading.main_thread():
        _stop_on_sigterm(server)
    return app


def _below(prefix: str, application: Any, server: Server) -> Any:
    """Serves an application below a path, as if it was mounted there. Nothing is outside of it."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        path = environ["PATH_INFO"]
        if path == prefix:
            query = environ.get("QUERY_STRING", "")
            return redirect(f"{prefix}/" + (f"?{query}" if query else ""), 308)(environ, start_response)
        if not path.startswith(f"{prefix}/"):
            error = HttpError(404, f"nothing is at this path: all paths begin with {prefix}/")
            body = server.context.error_body(error, path)
            return reply.error_response(error, body, f"{environ['REQUEST_METHOD']} {path}")(environ, start_response)
        environ["SCRIPT_NAME"] = environ.get("SCRIPT_NAME", "") + prefix
        environ["PATH_INFO"] = path[len(prefix) :]
        return application(environ, start_response)

    return answer


def _http_error(error: HTTPException) -> Response:
    server: Server = current_app.extensions["corosrv"]
    http_error = HttpError(error.code or 500, _words(error))
    answer = reply.error_response(http_error, server.context.error_body(http_error, request.path))
    for name, value in error.get_headers():
        if name not in ("Content-Type", "Content-Length"):
            answer.headers[name] = value
    return answer


def _words(error: HTTPException) -> str:
    """Explains an HTTP error: what went wrong, and what would work."""
    if isinstance(error, NotFound):
        nearest = nearest_route(current_app.url_map, request.method, request.path)
        meant = f"did you mean {nearest}? " if nearest else ""
        return f"nothing answers {request.method} at this path: {meant}GET /docs lists all paths"
    if isinstance(error, MethodNotAllowed):
        return f"this path does not take {request.method}, only {', '.join(sorted(error.valid_methods or ()))}"
    return error.description or error.name


def _stop_on_sigterm(server: Server) -> None:
    """Stops the server on SIGTERM before the web server's own handler runs, which waits for the streams to end."""
    previous = signal.getsignal(signal.SIGTERM)

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        worker = getattr(previous, "__self__", None)
        if worker is not None and worker_watch.is_replaced(worker):
            worker.at_end = server.stop
        else:
            server.stop()
        if callable(previous):
            previous(number, frame)
        else:
            signal.signal(signal.SIGTERM, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_sigterm)


def make_application(ends_with_bad_code: bool = False) -> Flask:
    """Makes the app that gunicorn serves in this process; ends the process where the settings allow none.

    `ends_with_bad_code`: a predictor or an application that cannot be loaded ends it as well, and gunicorn.
    """
    logging.getLogger("corosrv").setLevel(logging.INFO)
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s [%(process)d] [%(levelname)s] %(message)s"))
        logging.getLogger("corosrv").addHandler(handler)
    # Not for a blueprint, which any web server may serve.
    from corosrv.web.http import front
    from corosrv.web.http.connection import ClientLimits

    try:
        settings = settings_module.load()
        server, predictor = settings.server, settings.predictor
        logging.getLogger("corosrv").setLevel(server.log_level.upper())
        if server.log_format == "json":
            for target in logging.getLogger("corosrv").handlers:
                target.setFormatter(JsonFormatter())
        for name in settings_module.unknown_variables(os.environ):
            log.warning("unknown setting ignored: %s", settings_module.with_nearest(name))
        limits = ClientLimits(server.head_timeout_s, server.body_timeout_s, server.body_rate, server.write_timeout_s)
        worker = front.adopt(limits)
        if worker is not None and worker.cfg.workers > 1:
            settings = _for_several(settings, worker)
        app = create_app(settings)
        if worker is not None:
            _know_others(app.extensions["corosrv"], worker)
            app.extensions["corosrv"].context.count_clients = worker.clients.count
            worker.access_log = app.extensions["corosrv"].access_log
            worker.state = lambda: app.extensions["corosrv"].context.state
            _end_with(worker, app.extensions["corosrv"], predictor)
            if ends_with_bad_code:
                _end_with_bad_code(app.extensions["corosrv"])
        return app
    except CorosrvError as error:
        print(f"corosrv cannot start: {error}", file=sys.stderr)
        sys.exit(NEVER_STARTS)


def _for_several(settings: Settings, worker: Any) -> Settings:
    """Returns the settings of one of several worker processes of gunicorn's, which pass on requests that need a
    caller's state if they are Fronts. Raises SettingsError for what several cannot serve."""
    check_several(settings)
    server = settings.server
    if monkey.is_module_patched("socket"):  # otherwise no engine of another process can be waited for
        server = replace(server, engine=server.engine or "process")
    if server.model_bytes and len(settings.models) > 1 and server.engine != "process":
        log.warning("COROSRV_MODEL_BYTES is kept by each of the worker processes for models that it has loaded")
    if hasattr(worker, "share_state"):
        worker.share_state(open_run_dir(settings.operator.run_dir or default_path()))
    else:
        log.warning(
            "each worker process has its own stored responses, idempotency keys, resumable streams and groups: "
            "gunicorn -k corosrv.web.http.front.Front lets them share these"
        )
    if server.api_keys_file and getattr(worker, "siblings", None) is None:
        raise SettingsError(
            "COROSRV_API_KEYS_FILE: several worker processes would each count for themselves: use one (-w 1), or "
            "gunicorn -k corosrv.web.http.front.Front"
        )
    return replace(settings, server=server)


def _know_others(server: Server, worker: Any) -> None:
    """Lets a server ask and tell the other worker processes, if this one is a Front of several."""
    siblings: Siblings | None = getattr(worker, "siblings", None)
    if siblings is not None:
        server.context.siblings = siblings
        worker.own_app = worker.own_app or server.inner_app
        siblings.limiting.append(server.accounts.has_limits)
        siblings.keeps_sessions |= server.parts.app is not None
        # Upstreams may know callers whom this server does not: their state is spread over the processes.
        siblings.knows_callers.append(server.settings.needs_key or server.parts.upstreams is not None)


def check_several(settings: Settings) -> None:
    """Raises SettingsError for what several processes of one server cannot serve."""
    if settings.predictor is not None:
        raise SettingsError("predictions run in one process: start gunicorn with one worker (-w 1)")
    for name, part in (("an application's calls", settings.app), ("requests for upstreams", settings.upstream)):
        if part is not None and settings.cluster is None:
            raise SettingsError(
                f"{name} queue in one process: start gunicorn with one worker (-w 1), or set COROSRV_REDIS_URL, "
                "through which several share permits, groups and answers under idempotency keys"
            )
    managed = (settings.app, settings.upstream, settings.peer, settings.cluster)
    if settings.operator.mgmt_port and any(part is not None for part in managed):
        raise SettingsError(
            "COROSRV_MGMT_PORT is a port of one process: start gunicorn with one worker (-w 1), or leave the port out"
        )
    if settings.peer is not None and not settings.peer.replica_id:
        raise SettingsError("COROSRV_REPLICA_ID must be set where several processes are one of several peers")


def _end_with(worker: Front, server: Server, predictor: PredictionSettings | None) -> None:
    """Makes gunicorn wait for worker processes to end but for no load, and POST /shutdown end gunicorn."""
    context, parts = server.context, server.parts
    worker.endings += context.parts
    if (parts.app is not None or parts.models is not None) and len(context.parts) <= _PARTS_OF_ONE:
        context.on_unstartable = functools.partial(_give_up, server)
    server.on_close_while_loading = _leave
    # A terminal interrupts everybody; the master passes on what this process is to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if predictor is None:
        return
    number = signal.SIGINT if predictor.await_explicit_shutdown else signal.SIGTERM
    context.on_shutdown = lambda: os.kill(worker.ppid, number)


def _end_with_bad_code(server: Server) -> None:
    parts = server.parts
    if parts.predictor is not None:
        parts.predictor.on_unloadable = functools.partial(_give_up, server)
    if parts.app is not None:
        parts.app.manager.on_unimportable = lambda reason: _give_up(
            server, f"the application could not be imported: {reason}"
        )


def _give_up(server: Server, reason: str) -> None:
    """Ends this process and gunicorn with it: nothing that it is to serve can be started."""
    log.critical("corosrv cannot start: %s", reason)
    server.on_close_while_loading = functools.partial(_leave, NEVER_STARTS)
    server.close()
    _leave(NEVER_STARTS)


def _leave(status: int = 0) -> None:
    """Ends this process at once: what waits for libllama, which cannot stop loading, would wait as long as a load."""
    logging.shutdown()
    os._exit(status)


def __getattr__(name: str) -> Any:
    if name in ("application", "app"):
        globals()["application"] = globals()["app"] = application = make_application()
        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
