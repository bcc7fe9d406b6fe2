"""gunicorn with corosrv in it: `corosrv serve` is `gunicorn -k gevent corosrv.app` with other defaults."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

from gunicorn.app.base import BaseApplication


class _Gunicorn(BaseApplication):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        from corosrv import app  # in the worker, after the fork

        return app.application


def when_ready(arbiter: Any) -> None:
    """gunicorn's hook in the master: a second SIGTERM ends it quickly, as a second SIGINT does. gunicorn drops it."""
    n_stops = itertools.count()

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        arbiter.signal(number if next(n_stops) == 0 else signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, on_sigterm)


# What corosrv wants of gunicorn, by the names of its settings. Also read by deploy/gunicorn.conf.py.
OPTIONS: dict[str, Any] = {
    "worker_class": "corosrv.http.front.Front",
    "worker_connections": 10_000,
    "backlog": 2048,
    "keepalive": 5,
    "timeout": 30,
    "graceful_timeout": 35,
    "limit_request_line": 8190,
    "control_socket_disable": True,
    "proc_name": "corosrv",
    "when_ready": when_ready,
}


def run(options: Mapping[str, Any]) -> None:
    """Serves until told to stop; `options` are gunicorn's settings by name. Does not return."""
    _Gunicorn(options).run()
