"""The part of a server that serves an application: its workers, their dispatcher, objects and metrics."""

from __future__ import annotations

import _socket
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gevent
from flask import Blueprint
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError, ModelFailed, Refused, Starting
from corosrv.contracts.jobs import State
from corosrv.contracts.jobs.infer import InferJob, InferReader
from corosrv.contracts.metrics import metric, metrics_of
from corosrv.contracts.settings import AppSettings, child_environment
from corosrv.dialects.kserve import schema
from corosrv.serving.part import Part, ServerContext, why_not_served
from corosrv.web.management import routes, worker_routes
from corosrv.web.management.worker_routes import MakeJoinedWorker
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.policy import DispatchSettings
from corosrv.workers.dispatch.stats import DispatchCollector
from corosrv.workers.manager.joined import JoinedProcess, Joining
from corosrv.workers.manager.manager import Manager, ManagerSettings
from corosrv.workers.manager.plan import Claim
from corosrv.workers.manager.pool_memory import PoolMemory
from corosrv.workers.objects import FoundObject, ObjectCollector, ObjectStore
from corosrv.workers.wire.calls import PoolCard
from corosrv.workers.worker.parent.app_process import AppProcess
from corosrv.workers.worker.parent.app_worker import AppWorkerConfig
from corosrv.workers.worker.parent.call_services import CallServices, submit_to

_OF_WORKERS: dict[str, tuple[str, Callable[[AppProcess], float]]] = {
    "in_flight": ("Slots that run a call", lambda worker: worker.in_flight),
    "rss_bytes": ("Memory of the process", lambda worker: worker.rss),
}
_OF_POOLS: dict[str, tuple[str, Callable[[PoolMemory], float]]] = {
    "min": ("Workers at least", lambda memory: memory.least),
    "max": ("Workers at most", lambda memory: memory.most),
    "target": ("Workers that there should be", lambda memory: memory.target),
    "crashlooping": ("1: its workers crash again and again", lambda memory: memory.crashes.is_looping),
}


class ManagerCollector(Collector):
    """Keeps no numbers of its own. Labels are pools and places, never process ids."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def collect(self) -> Iterable[Metric]:
        places, pools = list(self._manager.shown_places), self._manager.pools
        states = (([place.id, place.pool, place.state.value], 1) for place in places)
        labels = ["worker", "pool"]
        yield metric(GaugeMetricFamily, "corosrv_worker_state", "1: the worker is there", [*labels, "state"], states)
        workers = [([place.id, place.pool], place.worker) for place in places if place.worker is not None]
        yield from metrics_of(GaugeMetricFamily, "corosrv_worker_", _OF_WORKERS, labels, workers)
        ended = (([pool.name, reason], n) for pool in pools for reason, n in pool.restarts.items())
        words = "Workers that ended and were replaced"
        yield metric(CounterMetricFamily, "corosrv_worker_restarts", words, ["pool", "reason"], ended)
        expired = (([pool.name], pool.restarts["lease_expired"]) for pool in pools)
        words = "Workers lost for want of a heartbeat"
        yield metric(CounterMetricFamily, "corosrv_lease_expired", words, ["pool"], expired)
        memories = (([pool.name], pool.memory) for pool in pools)
        yield from metrics_of(GaugeMetricFamily, "corosrv_pool_", _OF_POOLS, ["pool"], memories)


log = logging.getLogger("corosrv")

_SWEEP = 10.0  # seconds between two looks for objects whose time is over


class AppPart(Part):
    """Serves the handlers of an application, which worker processes run once the part is started."""

    def __init__(self, context: ServerContext, app: AppSettings) -> None:
        settings = context.settings.server
        self._context = context
        self._failure = ""  # why no worker has started
        self._sweeper: gevent.Greenlet | None = None
        self.objects = ObjectStore(find_elsewhere=self._find_object)
        self.dispatcher = Dispatcher(
            DispatchSettings(
                max_calls=app.max_queue,
                max_bytes=app.queue_bytes,
                calls_per_caller=context.settings.queue_per_key,
                idempotency_bytes=settings.idempotency_bytes,
                idempotency_s=settings.idempotency_s,
                n_callers=settings.n_shares,
                logs_json=settings.log_format == "json",
            )
        )
        services = CallServices(self._submit, self.objects, context.ask_peers)
        self._make_joined = _joined_maker(app, services, self._expected_pools)
        self.manager = Manager(
            ManagerSettings(
                workers=app.workers or 1,
                start_timeout=app.start_timeout,
                shutdown_grace=app.shutdown_grace,
                budget=Claim(gpus=_n_gpus() if app.gpus == -1 else app.gpus, memory=settings.model_bytes or math.inf),
            ),
            _maker(app, services),
            self.dispatcher,
            has_app=bool(app.worker_app),
            memory_elsewhere=lambda: sum(part.held_bytes for part in context.other_parts(self)),
            on_unstartable=self._on_failure,
        )

    def _expected_pools(self) -> Sequence[PoolCard]:
        """Returns the pools of this server's application; none where it has none. Raises Starting."""
        if self.manager.has_app and not self.manager.pools:
            raise Starting("the application is being imported, with which workers of other machines are compared")
        return [pool.card for pool in self.manager.pools]

    def _submit(self, job: InferJob) -> InferReader:
        """Runs what handlers call."""
        assert self._context.calls is not None
        return submit_to(self._context.calls)(job)

    def _on_failure(self, reason: str) -> None:
        self._failure = reason
        self._context.on_unstartable(f"no worker of the application could be started: {reason}")

    @property
    def held_bytes(self) -> int:
        return self.manager.held_memory

    def _find_object(self, object_id: str, caller: str) -> FoundObject | None:
        """Looks for a caller's object in the other worker processes. Waits."""
        siblings = self._context.siblings
        found = None if siblings is None else siblings.fetch(f"/v2/objects/{quote(object_id, safe='')}", caller)
        if found is None:
            return None
        return FoundObject(found.body, found.headers["content-type"], found.headers["etag"])

    def start(self) -> None:
        self._failure = why_not_served("handlers")
        if self._failure:
            return
        self.manager.start()
        self._sweeper = gevent.spawn(self._sweep)

    def _sweep(self) -> None:
        while True:
            gevent.sleep(_SWEEP)
            self.objects.sweep(time.monotonic())

    @property
    def state(self) -> State:
        state = self.manager.state
        return State.FAILED if self._failure and state is State.STARTING else state

    def check(self) -> None:
        """Raises the Unavailable that says which pool has no worker that is ready, and why."""
        if self.state is State.FAILED:
            raise ModelFailed(f"the application could not be started: {self._failure}", retry_after=5)
        self.manager.check()

    def stop(self) -> None:
        self.manager.stop()

    @property
    def is_ending(self) -> bool:
        return self.manager.is_ending

    def hurry(self) -> None:
        self.manager.hurry()

    def close(self) -> None:
        self.manager.close()
        if self._sweeper is not None:
            self._sweeper.kill(block=False)
        self.objects.close()

    def apis(self) -> tuple[Blueprint, ...]:
        """Returns what operators can do with the application."""
        return (
            worker_routes.blueprint(self.manager, lambda: self.dispatcher.stats().keys),
            worker_routes.join_blueprint(self.manager.joined, self._make_joined),
            routes.object_blueprint(self.objects),
        )

    def collectors(self) -> tuple[Collector, ...]:
        return (
            DispatchCollector(self.dispatcher.stats),
            ManagerCollector(self.manager),
            ObjectCollector(self.objects),
        )

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return schema.error_body(error)  # handlers are called through KServe's routes


def _n_gpus() -> int:
    """Counts the graphics cards that this machine shows to its processes."""
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()])


def _maker(app: AppSettings, services: CallServices) -> Callable[[str | None, str, int], AppProcess]:
    """Returns what makes a worker process for a pool, a place in it, and an incarnation."""
    config = AppWorkerConfig(
        app_ref=app.worker_app,
        app_dir=app.app_dir,
        is_factory=app.factory,
        start_timeout_s=app.start_timeout,
        hang_grace_s=app.hang_grace,
        env=child_environment(),
        cwd=str(Path.cwd()),
    )
    return lambda pool, place, incarnation: AppProcess(config, pool, place, incarnation, services)


def _joined_maker(
    app: AppSettings, services: CallServices, find_pools: Callable[[], Sequence[PoolCard]]
) -> MakeJoinedWorker:
    """Returns what makes the worker of a connection that a process has opened which others have started.

    One of another machine must run what `find_pools` returns: there may be other files under the same name.
    """

    def make(joining: Joining, place: str, incarnation: int, connection: _socket.socket, pid: int) -> JoinedProcess:
        if joining.host and app.worker_app and _name_of(joining.app_ref) != _name_of(app.worker_app):
            raise Refused(
                f"this server runs the application {_name_of(app.worker_app)}, "
                f"and not {_name_of(joining.app_ref)[:120]}",
                "app",
            )
        expected = find_pools() if joining.host else ()
        config = AppWorkerConfig(
            app_ref=joining.app_ref,
            app_dir=joining.app_dir,
            is_factory=joining.is_factory,
            start_timeout_s=app.start_timeout,
            hang_grace_s=app.hang_grace,
        )
        return JoinedProcess(config, joining.pool, place, incarnation, services, connection, pid, expected)

    return make


def _name_of(app_ref: str) -> str:
    """Returns how an application is called on every machine: a file without its folder."""
    return app_ref.rpartition("/")[2]
