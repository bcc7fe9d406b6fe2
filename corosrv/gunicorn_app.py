"""Runs gunicorn: `corosrv serve` is `gunicorn -k gevent corosrv.app` with other defaults."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.systemd import sd_notify
from gunicorn.util import parse_address

from corosrv.base import __version__
from corosrv.base.errors import SettingsError
from corosrv.contracts import settings as settings_module
from corosrv.contracts.settings import Settings
from corosrv.web.http import worker_watch
from corosrv.web.http.worker_watch import (
    NEVER_STARTS,
    STOPS,
    JsonLogger,
    WorkerReplacement,
    WorkerWatch,
    let_stops_through,
    tell_replaced,
)

# gunicorn's own limit only has to come after ours, which ends streams with an event and fails predictions in words.
_MARGIN = 5  # seconds
_ON_STOP = 10  # seconds that an application's workers have to clean up


# Set by systemd, or by the process that this one takes over from, for a socket that listens already.
_INHERITED = {"LISTEN_FDS", "GUNICORN_FD"}


# Options of gunicorn's that have another name here, or would take away what makes this server.
_NOT_FOR_HERE = {
    "bind": "use --host and --port",
    "workers": "use --workers",
    "worker_class": "corosrv serve has its own worker",
    "worker_connections": "use --connections",
    "certfile": "use --certfile",
    "keyfile": "use --keyfile",
    "preload_app": "the engine has to be opened after the fork",
    "config": "use gunicorn -c FILE corosrv.app",
}


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, Any], arguments: Sequence[str]) -> None:
        self._options = options
        self._arguments = arguments
        super().__init__()

    def load_config(self) -> None:
        """Takes the options, then what GUNICORN_CMD_ARGS says, then the arguments: the last one counts."""
        for name, value in self._options.items():
            self.cfg.set(name, value)
        parser = self.cfg.parser()
        for name, value in _parse_options(parser, self.cfg.get_cmd_args_from_env(), "GUNICORN_CMD_ARGS"):
            if name in _NOT_FOR_HERE:  # the variable may be there for other servers, too
                print(f"corosrv: {name} in GUNICORN_CMD_ARGS is not used: {_NOT_FOR_HERE[name]}", file=sys.stderr)
            else:
                self.cfg.set(name, value)
        for name, value in _parse_options(parser, self._arguments, "corosrv serve ... --"):
            if name in _NOT_FOR_HERE:
                raise SettingsError(f"{name} cannot be chosen behind `--`: {_NOT_FOR_HERE[name]}")
            self.cfg.set(name, value)

    def load(self) -> Any:
        from corosrv import app  # in the worker, after the fork

        return app.make_application(ends_with_bad_code=True)


def _parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str], source: str) -> list[tuple[str, Any]]:
    """Reads options of gunicorn's; `source`: where they stand, for messages. Raises SettingsError for what is none."""
    parser.prog = source
    chosen = vars(parser.parse_args(list(arguments)))
    if strangers := chosen.pop("args"):
        raise SettingsError(f"gunicorn's options stand in {source}, and {strangers[0]!r} is none")
    return [(name, value) for name, value in chosen.items() if value is not None]


def when_ready(arbiter: Any) -> None:
    """gunicorn's hook in the master: says what is served and where, and how it is stopped.

    A first SIGTERM or SIGINT lets running answers end, a second one ends the server quickly; gunicorn drops a second
    SIGTERM. Where a predictor is served, SIGTERM may not count at all. A pause of the machine is no reason to kill a
    worker. SIGHUP replaces the workers by others once these are ready. SIGUSR2 starts another master, of what is
    installed then, beside this one, which SIGTERM ends: systemd is told which one it follows from then on.
    """
    arbiter.murder_workers = WorkerWatch(arbiter).kill_hung
    replacement = WorkerReplacement(arbiter)
    arbiter.reload = replacement.reload
    predictor = None
    with contextlib.suppress(SettingsError):  # which the worker tells, and ends the server
        settings = settings_module.load()
        predictor = settings.predictor
        scheme = "https" if arbiter.cfg.is_ssl else "http"
        prefix = settings.server.api_prefix
        urls = [_url(listener.getsockname(), scheme) + prefix for listener in arbiter.LISTENERS]
        if sys.stderr.isatty():
            print(start_screen(settings, urls), file=sys.stderr)
        else:
            arbiter.log.info("corosrv %s serves %s on %s", __version__, ", ".join(_served(settings)), ", ".join(urls))
    n_stops = itertools.count()

    def stop(number: int, frame: FrameType | None) -> None:
        replacement.is_given_up = True
        if arbiter.reexec_pid:
            tell_replaced(arbiter.WORKERS.values())
            sd_notify(f"MAINPID={arbiter.reexec_pid}", arbiter.log)
        if next(n_stops) == 0:
            arbiter.signal(signal.SIGTERM, frame)
        else:
            arbiter.signal(signal.SIGINT, frame)
            arbiter.kill_workers(signal.SIGQUIT)  # told here: what arrives along with the first, gunicorn forgets

    _hold_stops_while_forking()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if predictor is not None and predictor.await_explicit_shutdown:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def start_screen(settings: Settings, urls: Sequence[str]) -> str:
    """Describes a server for whoever has started it: what it serves, where, and what to type next."""
    url = urls[0] if urls else ""
    dialects = "OpenAI's and Anthropic's; Ollama's below /api, llama.cpp's below /"
    speaks_models = bool(settings.models) or settings.upstream is not None
    rows = [("page", f"{url}/", "chat, and the live picture")] if settings.server.page else []
    if speaks_models:
        rows.append(("API", f"{url}/v1", dialects))
    if settings.kserve.v2 and (settings.models or settings.app is not None):
        rows.append(("v2", f"{url}/v2", "KServe's protocol"))
    if settings.kserve.grpc_port:
        rows.append(("gRPC", f"{settings.kserve.grpc_host or '127.0.0.1'}:{settings.kserve.grpc_port}", "the same"))
    if settings.predictor is not None:
        rows.append(("Cog", f"{url}/predictions", "Cog's API"))
    rows.append(("docs", f"{url}/docs", "every route, to try"))
    if settings.server.metrics:
        rows.append(("metrics", f"{url}/metrics", "for Prometheus"))
    width = max(len(address) for _, address, _ in rows)
    lines = [f"corosrv {__version__} serves {', '.join(_served(settings))}", ""]
    lines += [f"  {name:8} {address:{width}}  {words}" for name, address, words in rows]
    lines += [f"  {'also':8} {other}" for other in urls[1:]]
    if speaks_models:
        key = " -H 'Authorization: Bearer KEY'" if settings.server.needs_key else ""
        body = '{"messages": [{"role": "user", "content": "Name three rivers."}], "max_tokens": 50}'
        lines += ["", f"  curl {url}/v1/chat/completions{key} -d '{body}'"]
    lines += ["", f"  Ctrl-C lets running answers end for {_drain_s(settings):g} s; twice ends at once.", ""]
    return "\n".join(lines)


def _served(settings: Settings) -> Iterator[str]:
    """Names what a server serves."""
    for model in settings.models:
        yield f"{model.names[0]} ({model.file})" if model.file else model.names[0]
    if settings.predictor is not None:
        yield f"the predictor {settings.predictor.predictor}"
    if settings.app is not None:
        yield f"the application {settings.app.worker_app}" if settings.app.worker_app else "workers that join"
    if settings.upstream is not None:
        yield f"{len(settings.upstream.urls)} upstreams"
    if settings.peer is not None:
        yield f"what {len(settings.peer.urls)} peers have"
        if settings.peer.peer_url:
            yield "what peers found through Redis have"


def _url(address: Any, scheme: str = "http") -> str:
    if not isinstance(address, tuple):
        return f"unix:{address}"
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _hold_stops_while_forking() -> None:
    """Holds stop signals back while a worker is forked: until it has its own handlers, the master's would drop them.

    Once, in the master; workers let_stops_through().
    """
    master = os.getpid()

    def hold(how: int) -> None:
        if os.getpid() == master:
            signal.pthread_sigmask(how, STOPS)

    os.register_at_fork(before=lambda: hold(signal.SIG_BLOCK), after_in_parent=lambda: hold(signal.SIG_UNBLOCK))


def post_worker_init(worker: Any) -> None:
    """gunicorn's hook in the worker, of whatever class it is, when its handlers are there."""
    let_stops_through()


# gunicorn's settings by name. deploy/gunicorn.conf.py reads them as well.
OPTIONS: dict[str, Any] = {
    "worker_class": "corosrv.web.http.front.Front",
    "worker_connections": 10_000,
    "backlog": 2048,
    "keepalive": 5,
    "timeout": 30,
    "graceful_timeout": 35,
    "limit_request_line": 8190,
    "control_socket_disable": True,
    "proc_name": "corosrv",
    "when_ready": when_ready,
    "post_worker_init": post_worker_init,
}


def _drain_s(settings: Settings) -> float:
    """Returns the seconds that running answers, predictions and calls get to end."""
    return max(
        settings.server.drain_s,
        settings.predictor.drain_timeout if settings.predictor else 0.0,
        settings.app.shutdown_grace + _ON_STOP if settings.app else 0.0,
    )


def options(settings: Settings) -> dict[str, Any]:
    """Returns OPTIONS with the logs that are asked for, and enough time for what runs to end."""
    chosen = {**OPTIONS, "graceful_timeout": int(_drain_s(settings)) + _MARGIN}
    if settings.server.log_format == "json":
        chosen["logger_class"] = JsonLogger
    return chosen


def run(options: Mapping[str, Any], arguments: Sequence[str] = ()) -> None:
    """Serves until told to stop; `options` are gunicorn's settings by name, `arguments` options of its command line.

    Does not return. Raises SettingsError at once if an address cannot be listened on, where gunicorn would try for
    five seconds.
    """
    if not _INHERITED & os.environ.keys():
        for bind in options["bind"]:
            address = parse_address(bind)
            if isinstance(address, tuple) and (fault := worker_watch.fault(*address)) is not None:
                raise SettingsError(f"{bind} cannot be listened on: {fault}; choose with --host and --port")
    master = os.getpid()
    try:
        _Gunicorn(options, arguments).run()
    except SystemExit as end:
        # A worker passes here as well. By its status the master knows whether another one could do better.
        is_failed_start = os.getpid() == master and end.code == NEVER_STARTS
        raise SystemExit(1 if is_failed_start else end.code) from None
