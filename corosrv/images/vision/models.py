"""The models of a server that take images, and the state of their encoders."""

from __future__ import annotations

from collections.abc import Mapping

from corosrv.contracts.settings import ModelSettings
from corosrv.images.vision.collector import TransferCollector
from corosrv.images.vision.encoder import EncoderStats
from corosrv.images.vision.engine import VisionEngine
from corosrv.images.vision.waiting import MakeWatch


class VisionModels:
    """Makes engines with encoders, and remembers the last one of each model."""

    def __init__(self, make_watch: MakeWatch) -> None:
        """`make_watch`: see VisionEngine."""
        self._make_watch = make_watch
        self._engines: dict[str, VisionEngine] = {}

    def make(self, settings: ModelSettings) -> VisionEngine:
        """Makes an engine of a model with a projector; nothing starts before it is opened."""
        engine = self._engines[settings.names[0]] = VisionEngine(settings, self._make_watch)
        return engine

    def stats(self) -> Mapping[str, EncoderStats]:
        """Returns the counters of each model whose encoder was started and not closed."""
        all_stats = {name: engine.encoder_stats() for name, engine in self._engines.items()}
        return {name: stats for name, stats in all_stats.items() if stats is not None}

    def collector(self) -> TransferCollector:
        """Makes what reads the counters for Prometheus."""
        return TransferCollector(self.stats)

    @property
    def state(self) -> str:
        """Returns `degraded` while a model refuses images because its encoder died too often, otherwise `up`."""
        return "degraded" if any(engine.is_degraded for engine in self._engines.values()) else "up"
