"""The LoRA adapters of one model: which there are, and how much of each a job gets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from corosrv.errors import Refused
from corosrv.jobs import Adapter


class Adapters:
    """Adapters in the order they were loaded in. Any thread may call: what is set is swapped as a whole."""

    def __init__(self, loaded: Iterable[tuple[str, float]]) -> None:
        """`loaded`: the path of each, and its scale where a job does not say."""
        self._adapters = tuple(Adapter(id, Path(path).name, scale) for id, (path, scale) in enumerate(loaded))

    def list(self) -> tuple[Adapter, ...]:
        return self._adapters

    def set(self, scales: Mapping[int, float]) -> None:
        """What jobs get from now on that do not say: these, and nothing of the others. Raises Refused."""
        chosen = self._checked(scales)
        self._adapters = tuple(replace(adapter, scale=chosen.get(adapter.id, 0.0)) for adapter in self._adapters)

    def scales(self, asked: Iterable[tuple[int, float]] | None) -> tuple[float, ...]:
        """For a job, by the adapter's number. What it asks for stands alone. Raises Refused."""
        if asked is None:
            return tuple(adapter.scale for adapter in self._adapters)
        chosen = self._checked(dict(asked))
        return tuple(chosen.get(adapter.id, 0.0) for adapter in self._adapters)

    def _checked(self, scales: Mapping[int, float]) -> Mapping[int, float]:
        for id, scale in scales.items():
            if not 0 <= id < len(self._adapters):
                there_are = (
                    f"they are numbered from 0 to {len(self._adapters) - 1}" if self._adapters else "there is none"
                )
                raise Refused(f"lora: {id} is no adapter of this model: {there_are}", "lora")
            if not math.isfinite(scale):
                raise Refused(f"lora: the scale of adapter {id} must be a finite number", "lora")
        return scales
