"""The part of a server that forwards requests to upstreams, and the metrics of these.

Labels are ids, hosts and words of this server: no keys, and nothing of clients.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint
from flask.sansio.scaffold import Scaffold
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.base.errors import CorosrvError, ModelFailed, SettingsError, ShuttingDown
from corosrv.base.run_dir import default_path, open_run_dir
from corosrv.contracts.jobs import State
from corosrv.contracts.metrics import metric, metrics_of
from corosrv.contracts.settings import UpstreamSettings
from corosrv.dialects.ollama.catalog import OllamaCatalog, TaggedModel
from corosrv.dialects.openai import routes
from corosrv.fleet.upstreams.exchange import ExchangeLimits
from corosrv.fleet.upstreams.policies import make_policy
from corosrv.fleet.upstreams.pool import UpstreamPool, UpstreamPoolSettings
from corosrv.fleet.upstreams.spec import ChangesFile, UpstreamSpec, parse_all
from corosrv.fleet.upstreams.upstream import Upstream, UpstreamState
from corosrv.gateway.forwarding.forwarder import DirectForwarding, Forwarder, ForwardOptions, error_body
from corosrv.gateway.forwarding.routes import ForwardingRoutes, LocalModels
from corosrv.models.pool import ModelPool
from corosrv.serving.part import Part, ServerContext, why_not_served
from corosrv.web.http import worker_watch
from corosrv.web.http.access import Entrance
from corosrv.web.management import upstream_routes
from corosrv.web.management.client import read_token
from corosrv.web.management.listener import TokenGuard
from corosrv.web.management.upstream_routes import ManagedUpstreams
from corosrv.workers.dispatch.dispatcher import Dispatcher
from corosrv.workers.dispatch.estimates import Distribution
from corosrv.workers.dispatch.stats import DispatchCollector

_LABELS = ("upstream", "host")
_GAUGES: dict[str, tuple[str, Callable[[Upstream], float]]] = {
    "permits": ("Calls that the upstream may run at once", lambda upstream: upstream.permits.total),
    "in_flight": ("Calls that it runs", lambda upstream: upstream.in_flight),
    "idle_connections": ("Open connections that no call is on", lambda upstream: upstream.connections.n_idle),
}
_COUNTERS: dict[str, tuple[str, Callable[[Upstream], float]]] = {
    "ok": ("Calls that it answered", lambda upstream: upstream.stats.ok),
    "aborted": ("Calls that were ended before their answer was whole", lambda upstream: upstream.stats.aborted),
    "first_bytes": ("Answers that it began", lambda upstream: upstream.stats.n_first_bytes),
    "first_byte_seconds": ("Time until it began them", lambda upstream: upstream.stats.first_bytes.sum),
    "call_seconds": ("Time until its calls ended", lambda upstream: upstream.stats.durations.sum),
    "answer_bytes": ("Bytes of the bodies of its answers", lambda upstream: upstream.stats.n_bytes),
    "tokens": ("Tokens of its answers, of those that tell", lambda upstream: upstream.stats.n_tokens),
    "token_seconds": ("Time until the answers that tell their tokens ended", lambda upstream: upstream.stats.token_s),
    "aborts_sent": ("Requests to its abort endpoint that it took", lambda upstream: upstream.aborter.n_sent),
    "aborts_failed": ("Those that it did not take", lambda upstream: upstream.aborter.n_failed),
}

_HISTOGRAMS: dict[str, tuple[str, Callable[[Upstream], Distribution]]] = {
    "ttfb_seconds": (
        "From a call's start to the first byte of its answer",
        lambda upstream: upstream.stats.first_bytes,
    ),
    "duration_seconds": ("From a call's start to its end, however it ended", lambda upstream: upstream.stats.durations),
}


class UpstreamCollector(Collector):
    """Reads the numbers of all upstreams at each scrape."""

    def __init__(self, find_upstreams: Callable[[], Sequence[Upstream]]) -> None:
        self._find_upstreams = find_upstreams

    def collect(self) -> Iterable[Metric]:
        labelled = [(_labels_of(upstream), upstream) for upstream in self._find_upstreams()]
        states = (((*labels, state.value), one.state is state) for labels, one in labelled for state in UpstreamState)
        words = "1 for the state that the upstream is in"
        yield metric(GaugeMetricFamily, "corosrv_upstream_state", words, [*_LABELS, "state"], states)
        failed = (((*labels, why), n) for labels, one in labelled for why, n in one.stats.failed.items())
        yield metric(CounterMetricFamily, "corosrv_upstream_failed", "Calls that failed", [*_LABELS, "reason"], failed)
        for name, (text, distribution) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"corosrv_upstream_{name}", text, labels=_LABELS)
            for labels, upstream in labelled:
                values = distribution(upstream)
                histogram.add_metric(labels, values.cumulative(), values.sum)
            yield histogram
        yield from metrics_of(GaugeMetricFamily, "corosrv_upstream_", _GAUGES, _LABELS, labelled)
        yield from metrics_of(CounterMetricFamily, "corosrv_upstream_", _COUNTERS, _LABELS, labelled)


def _labels_of(upstream: Upstream) -> tuple[str, str]:
    return upstream.id, urlsplit(upstream.spec.url).netloc


class PoolModels:
    """Shows the models of a pool as forwarding sees them."""

    def __init__(self, pool: ModelPool, spill: int | None) -> None:
        """`spill`: jobs that may wait before others go to upstreams; None: as many as there are slots."""
        self._pool = pool
        self._spill = spill

    def names(self) -> frozenset[str]:
        return self._pool.names()

    def is_crowded(self, name: str) -> bool:
        """Tells whether more jobs wait than may, or the model is not loaded."""
        stats = self._pool.stats_of(name)
        return stats is None or stats.waiting > (stats.slots if self._spill is None else self._spill)

    def listing(self) -> dict[str, Any]:
        return routes.listing(self._pool) if self._pool.models() else {"data": [], "models": []}

    def tags(self) -> list[TaggedModel]:
        return OllamaCatalog(self._pool).tags().models


def _as_changed(specs: Iterable[UpstreamSpec], changes: ChangesFile | None) -> Iterable[UpstreamSpec]:
    """Returns the upstreams of the settings with what was changed of them since the server's start."""
    by_url = {spec.url: spec for spec in specs}
    for change in () if changes is None else changes.look():
        by_url.pop(change.url, None)
        if change.spec is not None:
            by_url[change.url] = change.spec
    return by_url.values()


class UpstreamPart(Part):
    """Forwards requests to upstreams, which are probed once the part is started."""

    formats = ("openai", "anthropic", "llamacpp", "ollama", "upstream")
    _numbers = itertools.count()  # of the parts of one process, which all processes make in one order

    def __init__(self, context: ServerContext, settings: UpstreamSettings, local: ModelPool | None = None) -> None:
        """`local`: the models that are served beside upstreams. Raises SettingsError for a wrong upstream."""
        server = context.settings.server
        self._context = context
        self._is_beside = local is not None
        self._is_mounted = context.is_mounted
        # Lets requests for the router's paths pass, which are not there without it.
        token_file = context.settings.operator.mgmt_token_file
        self._router_guard = TokenGuard(read_token(token_file)) if settings.router_paths else None
        self._failure = ""
        self.pool = UpstreamPool(
            UpstreamPoolSettings(
                limits=ExchangeLimits(settings.upstream_first_byte, settings.upstream_idle),
                max_queue=settings.upstream_queue,
                queue_bytes=settings.upstream_queue_bytes,
                calls_per_caller=context.settings.queue_per_key,
                patience=settings.upstream_patience,
                drain=server.drain_s,
                is_elastic=settings.elastic,
                is_strict=server.strict_model,
                logs_json=server.log_format == "json",
            ),
            functools.partial(Dispatcher, policy=make_policy(settings.upstream_policy)),
        )
        specs = parse_all(settings.urls)
        changes = self._changes_file(context.settings.operator.run_dir)
        for spec in _as_changed(specs, changes):
            self.pool.add(spec)
        self._managed = ManagedUpstreams(self.pool, frozenset(spec.api_key_env for spec in specs), changes)
        options = ForwardOptions(
            max_body_bytes=server.max_body_bytes,
            write_timeout=server.write_timeout_s,
            passes_keys=not server.needs_key,
            keeps_answers=server.idempotency_bytes > 0,
            reads_prompts=settings.upstream_policy == "prefix",
            reads_sessions=settings.upstream_policy == "sticky",
        )
        models_here: LocalModels | None = None if local is None else PoolModels(local, settings.upstream_spill)
        self.forwarder = Forwarder(self.pool, context.bodies, context.http_stats, options, context.groups)
        self._routes = ForwardingRoutes(
            self.pool,
            self.forwarder,
            context.answers,
            models_here,
            is_strict=server.strict_model,
        )

    def _changes_file(self, run_dir: str) -> ChangesFile | None:
        """Returns what keeps changes of the upstreams for other processes of this server, or those that take this
        one's place; None where gunicorn has not started it. Raises SettingsError."""
        number = next(self._numbers)
        worker = worker_watch.serving_worker()
        if worker is None:
            return None
        folder = open_run_dir(run_dir or default_path())
        try:
            return ChangesFile(folder, worker.ppid, number, worker_watch.old_master())
        except OSError as error:
            raise SettingsError(f"the run directory {folder} cannot be used: {error.strerror}") from None

    def model_names(self) -> Sequence[str]:
        return self.pool.models()

    def start(self) -> None:
        self._failure = why_not_served("upstreams")
        if not self._failure:
            self.pool.start()
            self._managed.start()

    @property
    def state(self) -> State:
        """READY while an upstream is; beside models of this server always, until it stops."""
        if self._failure:
            return State.FAILED
        state = self.pool.state
        return State.READY if self._is_beside and state is not State.DRAINING else state

    def check(self) -> None:
        """Raises the Unavailable that calls would meet now."""
        if self._failure:
            raise ModelFailed(self._failure)
        if self.state is State.DRAINING:
            raise ShuttingDown("the server is shutting down")
        if not self._is_beside:
            self.pool.check()

    def stop(self) -> None:
        self.pool.stop()

    @property
    def is_ending(self) -> bool:
        return self.pool.is_ending

    def hurry(self) -> None:
        self.pool.hurry()

    def close(self) -> None:
        self._managed.close()
        self.pool.close()

    def collectors(self) -> tuple[Collector, ...]:
        queues = DispatchCollector(self.pool.dispatcher.stats, "corosrv_upstreams")
        return UpstreamCollector(lambda: self.pool.upstreams), queues

    def apis(self) -> tuple[Blueprint, ...]:
        return (upstream_routes.blueprint(self._managed),)

    def blueprints(self) -> tuple[Blueprint, ...]:
        guard = self._router_guard
        if guard is None:
            return (self._routes.blueprint(),)
        ask_others = self._context.ask_other_workers
        router = upstream_routes.router_blueprint(self._managed, guard, ask_others)
        return (self._routes.blueprint(), router)

    def ollama(self) -> Blueprint:
        """Makes the routes of Ollama's API, for a server that has upstreams alone."""
        return self._routes.ollama(self._is_mounted)

    def add_hook(self, scaffold: Scaffold) -> None:
        """Has requests looked at that a model served here could answer, after the checks of every request."""
        self._routes.add_hook(scaffold)

    def direct(self, entrance: Entrance) -> DirectForwarding:
        """Returns what forwards plain requests without Flask."""
        return DirectForwarding(self.forwarder, entrance)

    def has_path(self, path: str) -> bool:
        """Returns True: errors have this part's shape wherever no other part but models answers, who have it too."""
        return True

    def error_body(self, error: CorosrvError, path: str) -> Any:
        return error_body(error, path)
