"""The models of a server that take images, the state of their encoders, and their numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from corosrv.contracts.settings import ModelSettings
from corosrv.images.transfer.session import TransferResult
from corosrv.images.transfer.stats import IgnoredReason
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
        yield from _gauges(by_model)
        yield from _counters(by_model)
        yield from _histograms(by_model)


def _gauges(by_model: StatsByModel) -> Iterator[Metric]:
    blocks = GaugeMetricFamily(f"{_PREFIX}pool_blocks", "Blocks of the pool", labels=["model", "state"])
    families = {
        "active": GaugeMetricFamily(f"{_PREFIX}active", "Images that the encoder has", labels=["model"]),
        "queued": GaugeMetricFamily(f"{_PREFIX}queued", "Images that wait for the encoder", labels=["model"]),
        "staging": GaugeMetricFamily(f"{_PREFIX}staging_bytes", "Bytes of rows under way", labels=["model"]),
        "cache": GaugeMetricFamily(f"{_PREFIX}cache_bytes", "Bytes of encoded images that are kept", labels=["model"]),
        "degraded": GaugeMetricFamily(f"{_PREFIX}degraded", "1: images are refused", labels=["model"]),
    }
    for model, stats in by_model.items():
        transfers = stats.transfers
        states = {"free": transfers.n_free, "in_use": transfers.n_in_use, "quarantined": transfers.n_quarantined}
        for state, count in states.items():
            blocks.add_metric([model, state], count)
        values = (transfers.n_active, transfers.n_queued, transfers.staging_bytes, stats.cache_bytes, stats.is_degraded)
        for family, value in zip(families.values(), values, strict=True):
            family.add_metric([model], value)
    return iter((blocks, *families.values()))


def _counters(by_model: StatsByModel) -> Iterator[Metric]:
    counters: dict[str, tuple[str, Callable[[EncoderStats], float]]] = {
        "rounds": ("Grants that were filled and copied", lambda stats: stats.transfers.n_rounds),
        "rows": ("Rows that were copied", lambda stats: stats.transfers.n_rows),
        "not_finite": ("Images refused for rows that are not finite", lambda stats: stats.transfers.n_not_finite),
        "drain_seconds": (
            "Time that blocks of ended transfers stayed lent",
            lambda stats: stats.transfers.drain_seconds,
        ),
        "encoder_restarts": ("Encoder processes that followed one that died", lambda stats: stats.n_restarts),
        "encoder_kills": ("Encoder processes killed because they did not answer", lambda stats: stats.n_kills),
        "cached_images": ("Images that were encoded already", lambda stats: stats.n_cache_hits),
    }
    for name, (text, read) in counters.items():
        family = CounterMetricFamily(f"{_PREFIX}{name}", text, labels=["model"])
        for model, stats in by_model.items():
            family.add_metric([model], read(stats))
        yield family
    yield from _labelled_counters(by_model)


def _labelled_counters(by_model: StatsByModel) -> Iterator[Metric]:
    seconds = CounterMetricFamily(f"{_PREFIX}seconds", "Time of images, by phase", labels=["model", "phase"])
    results = CounterMetricFamily(f"{_PREFIX}finished", "Transfers that have ended", labels=["model", "result"])
    ignored = CounterMetricFamily(
        f"{_PREFIX}ignored_messages", "Messages of encoders that were dropped", labels=["model", "why"]
    )
    for model, stats in by_model.items():
        for phase, time in stats.transfers.seconds.items():
            seconds.add_metric([model, phase], time)
        for result in TransferResult:
            results.add_metric([model, result.value], stats.transfers.finished.get(result, 0))
        for reason in IgnoredReason:
            ignored.add_metric([model, reason.value], stats.transfers.ignored.get(reason, 0))
    return iter((seconds, results, ignored))


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
        """Makes the collector for Prometheus."""
        return TransferCollector(self.stats)

    @property
    def state(self) -> str:
        """Returns `degraded` while a model refuses images because its encoder died too often, otherwise `up`."""
        return "degraded" if any(engine.is_degraded for engine in self._engines.values()) else "up"
