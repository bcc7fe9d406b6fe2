"""Sends the largest lists and maps that each route takes, and measures for how long the hub is held by one request.

`python -m tests.hardening.lists` tries all of them at full size, on the packaged model if it is installed, and takes
about an hour; names of routes choose among them. It exits with 1 where a request holds the hub for longer than HELD
seconds of processor time between two looks at what else there is to do.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gevent
import msgspec
from flask import Flask

from corosrv import app as corosrv_app
from corosrv.base.errors import SettingsError
from corosrv.contracts import settings
from corosrv.contracts.jobs.setup import WorkerState
from corosrv.contracts.settings import PredictionSettings, model_list
from corosrv.dialects.predictions import routes as prediction_routes
from corosrv.dialects.predictions.service import PredictionService
from corosrv.web.http import openapi
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.metrics import HttpStats
from corosrv.web.http.sse import StreamLimits
from corosrv.workers.worker.parent.predictor_process import PredictorProcess, WorkerConfig
from tests.hardening.largest import Body, Limits, bodies
from tests.workers.worker.predicting import wait_for

HELD = 0.1  # seconds of processor time
PATIENCE = 120.0  # seconds that one request may take


class HubHold:
    """Measures the processor time that the hub's thread spends between two turns of its loop.

    Processor time, so that a busy machine makes no difference.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.n_turns = 0
        self._watcher = gevent.get_hub().loop.check(ref=False)  # called after each look at what is ready
        self._began = time.thread_time()
        self._watcher.start(self._on_turn)

    def _on_turn(self) -> None:
        now = time.thread_time()
        self.longest = max(self.longest, now - self._began)
        self.n_turns += 1
        self._began = now

    def begin(self) -> None:
        """Forgets what was measured so far. Waits for the loop's next turn."""
        gevent.sleep(0.001)
        self.longest, self.n_turns = 0.0, 0

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()


@dataclass(frozen=True)
class Route:
    """A route that takes bodies: its path, the bodies' type, and a good body."""

    path: str
    method: str
    kind: Any
    example: Any


@dataclass(frozen=True)
class Finding:
    """The outcome of one body: for how long it held the hub, and how it was answered."""

    route: Route
    name: str
    n_bytes: int
    status: int  # 0: no answer in time
    held: float  # seconds
    n_turns: int
    words: str  # the beginning of what was answered

    def __str__(self) -> str:
        size = f"{self.n_bytes / 1e6:.1f} MB"
        return (
            f"{1000 * self.held:7.0f} ms {self.n_turns:6} turns {size:>9} {self.status:4} {self.route.path} {self.name}"
        )


PREDICTOR = Path(__file__).parents[1] / "predictors" / "containers.py"


class Inputs(msgspec.Struct):
    """The inputs of PREDICTOR."""

    names: list[str]
    numbers: list[float]
    table: dict[str, Any]
    anything: Any


class PredictionBody(msgspec.Struct):
    """What a prediction is asked for with; the server reads it without a type."""

    input: Inputs
    context: dict[str, str] | None = None
    webhook_events_filter: list[str] | None = None


def routes_of(serving: Flask) -> Iterator[Route]:
    """Yields the routes that take bodies; of several paths for the same, the first."""
    yield Route("/predictions", "POST", PredictionBody, {"input": {}})
    seen: list[openapi.Operation] = []
    for rule in serving.url_map.iter_rules():
        said = openapi.find(serving.view_functions.get(rule.endpoint))
        if said is None or said.body is None or said in seen or "POST" not in (rule.methods or ()):
            continue
        seen.append(said)
        path = rule.rule.replace("<slot>", "0?action=save").replace("<id>", "a")
        yield Route(path, "POST", said.body, _example(said))


def _example(said: openapi.Operation) -> Any:
    return dict(example) if isinstance(example := next(iter(said.examples.values()), {}), dict) else example


@contextmanager
def served(**chosen: Any) -> Iterator[Flask]:
    """Yields the application, with a model and a predictor that are ready, and no web server in front."""
    on_sigterm = signal.getsignal(signal.SIGTERM)
    serving = corosrv_app.create_app(settings.load({"slots": 4, "threads": 1, **chosen}, environ={}))
    worker = PredictorProcess(WorkerConfig(predictor=f"{PREDICTOR}:Runner"))
    service = PredictionService(worker, PredictionSettings())
    serving.register_blueprint(
        prediction_routes.blueprint(service, lambda: None, BodyReader(), StreamLimits(HttpStats()))
    )
    worker.start()
    try:
        wait_for(worker, WorkerState.READY)
        with gevent.Timeout(120):
            while serving.test_client().get("/health").status_code != 200:
                gevent.sleep(0.02)
        yield serving
    finally:
        service.shutdown(0)
        worker.kill()
        worker.stop(10)
        serving.extensions["corosrv"].parts.models.close()
        signal.signal(signal.SIGTERM, on_sigterm)


def measure(serving: Flask, route: Route, body: Body, hold: HubHold) -> Finding:
    """Sends one body, and tells for how long the hub was held. Waits for the answer."""
    client = serving.test_client()

    def ask() -> tuple[int, str]:
        answer = client.open(route.path, method=route.method, data=body.data, content_type="application/json")
        said = answer.data
        answer.close()
        return answer.status_code, said[:200].decode("utf-8", "replace")

    hold.begin()
    asking = gevent.spawn(ask)
    asking.join(PATIENCE)
    status, words = (0, "") if not asking.ready() else asking.get()
    gevent.sleep(0.001)  # the last turn is measured, too
    held, n_turns = hold.longest, hold.n_turns
    asking.kill()
    return Finding(route, body.name, len(body.data), status, held, n_turns, words)


def sweep(serving: Flask, limits: Limits, only: list[str]) -> Iterator[Finding]:
    """Tries every body of every route."""
    hold = HubHold()
    try:
        for route in routes_of(serving):
            if only and not any(name in route.path for name in only):
                continue
            for body in bodies(route.kind, route.example, limits):
                yield measure(serving, route, body, hold)
                gc.collect()
    finally:
        hold.close()


def _model() -> str:
    try:
        return model_list.packaged_model()
    except SettingsError:
        return "synthetic:?tokens_per_s=0"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hardening.lists", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("routes", nargs="*", help="parts of paths; all routes without any")
    parser.add_argument("--model", default=_model(), help="a GGUF, or synthetic:")
    parser.add_argument(
        "--all", action="store_true", help="print every body, and not only those that held the hub long"
    )
    parser.add_argument("--values", type=int, default=Limits().values, help="JSON values of a body")
    parser.add_argument("--bytes", type=int, default=Limits().n_bytes)
    parser.add_argument("--held-ms", type=float, default=1000 * HELD)
    arguments = parser.parse_args()
    limits = Limits(arguments.values, n_bytes=arguments.bytes)
    n_bodies = n_long = 0
    with TemporaryDirectory() as folder, served(model=arguments.model, slot_save_path=folder) as serving:
        for finding in sweep(serving, limits, arguments.routes):
            n_bodies += 1
            is_long = finding.held > arguments.held_ms / 1000 or finding.status in (0, 500)
            n_long += is_long
            if is_long or arguments.all:
                print(finding, finding.words[:120].replace("\n", " "), flush=True)
    print(f"{n_bodies} bodies, of which {n_long} held the hub for over {arguments.held_ms:g} ms of processor time")
    sys.exit(n_long > 0)


if __name__ == "__main__":
    main()
