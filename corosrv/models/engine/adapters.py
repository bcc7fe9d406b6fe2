"""The LoRA adapters of one model: which there are, and how much of each a job gets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Adapter


class Adapters:
    """LoRA adapters in the order they were loaded in. Any thread may call: scales are replaced all at once."""

    def __init__(self, loaded: Iterable[tuple[str, float]]) -> None:
        """`loaded`: the path of each, and its scale where a job does not say."""
        self._adapters = tuple(Adapter(id, Path(path).name, scale) for id, (path, scale) in enumerate(loaded))

    def list(self) -> tuple[Adapter, ...]:
        return self._adapters

    def set(self, scales: Mapping[int, float]) -> None:
        """Sets the scales for jobs that name no adapters; adapters not listed are off. Raises Refused."""
        checked = self._checked(scales)
        self._adapters = tuple(replace(adapter, scale=checked.get(adapter.id, 0.0)) for adapter in self._adapters)

    def scales(self, named_scales: Iterable[tuple[int, float]] | None) -> tuple[float, ...]:
        """Returns a job's scale for each adapter: those that it names, or the set ones. Raises Refused."""
        if named_scales is None:
            return tuple(adapter.scale for adapter in self._adapters)
        checked = self._checked(dict(named_scales))
        return tuple(checked.get(adapter.id, 0.0) for adapter in self._adapters)

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
