"""A WSGI application over a hostile worker, for what only a real server shows: `gunicorn -k gevent` imports it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from corosrv.contracts.jobs.setup import WorkerState
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.support.hostile_worker import COMMAND
from tests.workers.worker.predicting import TIMEOUT, counters, submit, wait_for

_running: list[PredictorProcess] = []


def _worker() -> PredictorProcess:
    """Started by the first request: after the fork, on the hub that serves."""
    if not _running:
        worker = PredictorProcess(WorkerConfig(predictor="well", slots=4, command=COMMAND))
        worker.start()
        wait_for(worker, WorkerState.READY)
        _running.append(worker)
    return _running[0]


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Runs the prediction that the query says, and tells its last message, the permits and the worker's number."""
    arguments = {name: int(value) if value.isdigit() else value for name, value in parse_qsl(environ["QUERY_STRING"])}
    worker = _worker()
    messages = []
    with submit(worker, **arguments) as reader:
        while taken := reader.take(TIMEOUT):
            messages += taken
    told = {"last": msgspec.to_builtins(messages[-1]), "permits": counters(worker), "pid": worker.pid}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told).encode()]
