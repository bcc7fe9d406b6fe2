"""The models of a server that take images, the state of their encoders, and their numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.contracts.metrics import Family, metric, metrics_of
from corosrv.contracts.settings import ModelSettings
from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import IgnoredReason, TransferStats
from corosrv.images.vision.encoder import EncoderStats, MakeWatch
from corosrv.images.vision.engine import VisionEngine

if TYPE_CHECKING:
    from corosrv.images.vision.engine import LanguageEngine

StatsByModel = Mapping[str, EncoderStats]

_PREFIX = "corosrv_transfer_"
_BOUNDS = (1, 2, 4, 8, 16, 32, 64)


class TransferCollector(Collector):
    """Keeps no numbers of its own. Every series says which model."""

    def __init__(self, encoder_stats: Callable[[], StatsByModel]) -> None:
        """`encoder_stats` returns the counters of each model whose encoder runs."""
        self._encoder_stats = encoder_stats

    def collect(self) -> Iterable[Metric]:
        by_model = self._encoder_stats()
        things = [([model], stats) for model, stats in by_model.items()]
        yield from metrics_of(GaugeMetricFamily, _PREFIX, _GAUGES, ["model"], things)
        yield from metrics_of(CounterMetricFamily, _PREFIX, _COUNTERS, ["model"], things)
        for label, (family, name, text, read) in _COUNTS.items():
            rows = (([model, value], n) for model, one in by_model.items() for value, n in read(one.transfers).items())
            yield metric(family, _PREFIX + name, text, ["model", label], rows)
        yield from _histograms(by_model)


_GAUGES: dict[str, tuple[str, Callable[[EncoderStats], float]]] = {
    "active": ("Images that the encoder has", lambda stats: stats.transfers.n_active),
    "queued": ("Images that wait for the encoder", lambda stats: stats.transfers.n_queued),
    "staging_bytes": ("Bytes of rows under way", lambda stats: stats.transfers.staging_bytes),
    "cache_bytes": ("Bytes of encoded images that are kept", lambda stats: stats.cache_bytes),
    "degraded": ("1: images are refused", lambda stats: stats.is_degraded),
}
_COUNTERS: dict[str, tuple[str, Callable[[EncoderStats], float]]] = {
    "rounds": ("Grants that were filled and copied", lambda stats: stats.transfers.n_rounds),
    "rows": ("Rows that were copied", lambda stats: stats.transfers.n_rows),
    "not_finite": ("Images refused for rows that are not finite", lambda stats: stats.transfers.n_not_finite),
    "drain_seconds": ("Time that blocks of ended transfers stayed lent", lambda stats: stats.transfers.drain_seconds),
    "encoder_restarts": ("Encoder processes that followed one that died", lambda stats: stats.n_restarts),
    "encoder_kills": ("Encoder processes killed because they did not answer", lambda stats: stats.n_kills),
    "cached_images": ("Images that were encoded already", lambda stats: stats.n_cache_hits),
}
# By the label that such a metric has beside the model: its name, its text, and what reads the number of each value.
_COUNTS: dict[str, tuple[Family, str, str, Callable[[TransferStats], Mapping[str, float]]]] = {
    "state": (
        GaugeMetricFamily,
        "pool_blocks",
        "Blocks of the pool",
        lambda stats: {"free": stats.n_free, "in_use": stats.n_in_use, "quarantined": stats.n_quarantined},
    ),
    "phase": (CounterMetricFamily, "seconds", "Time of images, by phase", lambda stats: stats.seconds),
    "result": (
        CounterMetricFamily,
        "finished",
        "Transfers that have ended",
        lambda stats: {result.value: stats.finished.get(result, 0) for result in TransferResult},
    ),
    "why": (
        CounterMetricFamily,
        "ignored_messages",
        "Messages of encoders that were dropped",
        lambda stats: {reason.value: stats.ignored.get(reason, 0) for reason in IgnoredReason},
    ),
}


def _histograms(by_model: StatsByModel) -> Iterator[Metric]:
    blocks = HistogramMetricFamily(f"{_PREFIX}grant_blocks", "Blocks of a grant", labels=["model"])
    rounds = HistogramMetricFamily(f"{_PREFIX}rounds_per_item", "Grants of an image", labels=["model"])
    for model, stats in by_model.items():
        for family, counts in ((blocks, stats.transfers.grant_blocks), (rounds, stats.transfers.rounds_per_item)):
            family.add_metric([model], _cumulative(counts), sum(value * n for value, n in counts.items()))
    return iter((blocks, rounds))


def _cumulative(counts: Mapping[int, int]) -> list[tuple[str, float]]:
    buckets = [(str(bound), sum(n for value, n in counts.items() if value <= bound)) for bound in _BOUNDS]
    return [*buckets, ("+Inf", sum(counts.values()))]


class VisionModels:
    """Makes engines with encoders, and remembers the last one of each model."""

    def __init__(self, make_watch: MakeWatch) -> None:
        """`make_watch`: see VisionEngine."""
        self._make_watch = make_watch
        self._engines: dict[str, VisionEngine] = {}

    def make(self, settings: ModelSettings, engine: LanguageEngine | None = None) -> VisionEngine:
        """Gives an engine a projector for images; nothing starts before it is opened. None: one in this process."""
        vision = self._engines[settings.names[0]] = VisionEngine(settings, self._make_watch, engine)
        return vision

    def stats(self) -> Mapping[str, EncoderStats]:
        """Returns the counters of each model whose encoder was started and not closed."""
        all_stats = {name: engine.encoder_stats() for name, engine in self._engines.items()}
        return {name: stats for name, stats in all_stats.items() if stats is not None}

    def collector(self) -> TransferCollector:
        return TransferCollector(self.stats)

    @property
    def state(self) -> str:
        """Returns `degraded` while a model refuses images because its encoder died too often, otherwise `up`."""
        return "degraded" if any(engine.is_degraded for engine in self._engines.values()) else "up"
