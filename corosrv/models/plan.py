"""Plans which models to load and to unload next, from their states alone.

`estimate` counts a model's bytes: its weights, their repacked copies, and the keys and values of all slots.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from corosrv.base.errors import IllegalTransition, ModelFailed
from corosrv.contracts.settings import ModelSettings
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.plan import ContextPair, bytes_beside, model_needs, plan_memory, with_defaults
from corosrv.models.fitting.room import Room
from corosrv.models.loadable import Footprint

_TOKEN_BYTES = 4  # what a made-up model keeps of each token: its id


def estimate(settings: ModelSettings, facts: Facts | None) -> int:
    """Estimates the bytes of a model that is not loaded, rather too many than too few; 0 without any facts."""
    if settings.is_synthetic:
        chosen = with_defaults(settings)
        return chosen.slots * chosen.ctx * _TOKEN_BYTES
    if facts is None:
        return 0
    # How much will be repacked is known afterwards: at most everything.
    copies = facts.size if settings.kernels != "ggml" else 0
    pair = _pair(settings, facts)
    return facts.size + copies + model_needs(settings, facts).cache(pair) + bytes_beside(settings)


def measured(settings: ModelSettings, facts: Facts | None, info: Footprint, slots: int) -> int:
    """Returns the bytes of a loaded model with so many slots."""
    if settings.is_synthetic or facts is None:
        return estimate(settings, facts)
    context = info.shared_cells // slots or info.context
    cache = model_needs(settings, facts).cache(ContextPair(slots, context))
    return info.size + info.packed_bytes + cache + bytes_beside(settings)


def file_bytes(settings: ModelSettings) -> int:
    """Returns the size of a model's file; 0 where there is none."""
    return 0 if settings.is_synthetic or not os.path.isfile(settings.model) else os.path.getsize(settings.model)


def share(total: int, own: int, other_files: Sequence[int]) -> int:
    """Returns the part of a total, in bytes, for a model whose slots or context are fitted; 0 without a total.

    `own`, `other_files`: the sizes of its files and of those of the others. What the files leave is shared in equal
    parts; where they leave nothing, idle models have to make room, and each may take all.
    """
    left = total - 2 * (own + sum(other_files))  # with copies in another order
    return 2 * own + left // (1 + len(other_files)) if left > 0 else total


def _pair(settings: ModelSettings, facts: Facts) -> ContextPair:
    """Returns the slots and the context that the model's own limit leaves it."""
    unlimited = Room(1 << 62, "")
    try:
        return plan_memory(settings, facts, unlimited).pair
    except ModelFailed:
        chosen = with_defaults(settings)
        return ContextPair(chosen.slots, chosen.ctx)


class ModelState(str, Enum):
    UNLOADED = "unloaded"
    DOWNLOADING = "downloading"  # from a hub; it is loaded afterwards, if it is still wanted
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"  # could not be loaded; the next request after a while tries again


NEXT: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.DOWNLOADING}),
    ModelState.DOWNLOADING: frozenset({ModelState.UNLOADED, ModelState.FAILED}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.UNLOADING}),
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNLOADED}),
    ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.DOWNLOADING}),
}
# A model in one of these states has memory, or is about to get some.
HOLDING = frozenset({ModelState.LOADING, ModelState.READY, ModelState.UNLOADING})


def check_move(state: ModelState, next_state: ModelState) -> None:
    """Raises IllegalTransition for a move that the table does not have."""
    if next_state not in NEXT[state]:
        raise IllegalTransition("a model", state, next_state)


@dataclass(frozen=True, slots=True)
class Standing:
    """One model as the plan needs it. Times are seconds of one clock."""

    name: str
    state: ModelState
    bytes: int
    wanted_since: float | None = None  # since when a request waits for it, or the operator wants it
    is_here: bool = True  # its files are; otherwise they have to be downloaded first
    is_used: bool = False  # whether jobs are alive, or one is about to be submitted
    idle_since: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.state is ModelState.READY and not self.is_used and self.wanted_since is None

    @property
    def can_load(self) -> bool:
        return self._is_needed and self.is_here

    @property
    def can_download(self) -> bool:
        return self._is_needed and not self.is_here

    @property
    def _is_needed(self) -> bool:
        return self.wanted_since is not None and self.state in (ModelState.UNLOADED, ModelState.FAILED)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Names to load and to unload now, and when to plan again if nothing else happens."""

    load: tuple[str, ...] = ()
    unload: tuple[str, ...] = ()
    next_at: float | None = None
    shortage: int = 0  # bytes that others are to let go of for the first in line


def plan(
    models: Iterable[Standing], limit: int, idle_s: float, now: float, elsewhere: int = 0, *, asks_others: bool = False
) -> LoadPlan:
    """Loads what is wanted, first come, first served, as far as `limit` bytes go (0: no limit).

    `elsewhere`: bytes of the limit that others hold, such as worker processes. `asks_others`: whoever holds them makes
    room, and no model is unloaded for another here.

    Idle models make room, the least recently used first, and only if that is enough; they go by themselves after
    `idle_s` seconds (0: never). While the first in line waits for room, nobody passes it, so that it is not starved.
    """
    models = list(models)
    idle = sorted((model for model in models if model.is_idle), key=lambda model: model.idle_since)
    expired = [model for model in idle if idle_s and now - model.idle_since >= idle_s]
    spare = idle[len(expired) :]
    room = _FreeRoom(models, limit, elsewhere)
    room.unload(expired)
    load: list[str] = []
    shortage = 0
    for model in sorted((model for model in models if model.can_load), key=_wanted_since):
        if not room.has(model):
            lacking = room.make(model, () if asks_others else spare)
            shortage = max(lacking, 0) if asks_others else 0
            break
        room.take(model)
        load.append(model.name)
    staying = [model for model in spare if model.name not in room.unloaded]
    next_at = staying[0].idle_since + idle_s if idle_s and staying else None
    return LoadPlan(tuple(load), tuple(room.unloaded), next_at, shortage)


def _wanted_since(model: Standing) -> float:
    assert model.wanted_since is not None
    return model.wanted_since


class _FreeRoom:
    """The bytes that are free, and those that will be."""

    def __init__(self, models: Iterable[Standing], limit: int, elsewhere: int) -> None:
        self._limit = limit
        self._free = limit - elsewhere - sum(model.bytes for model in models if model.state in HOLDING)
        self._coming = sum(model.bytes for model in models if model.state is ModelState.UNLOADING)
        self.unloaded: list[str] = []

    def has(self, model: Standing) -> bool:
        # What can never fit is let through: its loading says so.
        return not self._limit or model.bytes > self._limit or model.bytes <= self._free

    def take(self, model: Standing) -> None:
        if model.bytes <= self._limit:
            self._free -= model.bytes

    def unload(self, models: Iterable[Standing]) -> None:
        for model in models:
            self.unloaded.append(model.name)
            self._coming += model.bytes

    def make(self, model: Standing, idle: Iterable[Standing]) -> int:
        """Has idle models make room, if that is enough; returns the bytes that are lacking even so."""
        shortage = model.bytes - self._free - self._coming
        victims: list[Standing] = []
        for candidate in idle:
            if shortage <= 0:
                break
            victims.append(candidate)
            shortage -= candidate.bytes
        if shortage <= 0:
            self.unload(victims)
        return shortage
