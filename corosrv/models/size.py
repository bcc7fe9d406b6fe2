"""Estimates a model's memory: its weights, their repacked copies, and the keys and values of all slots."""

from __future__ import annotations

import os
from collections.abc import Sequence

from corosrv.base.errors import ModelFailed
from corosrv.contracts.settings import ModelSettings
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.plan import ContextPair, model_needs, plan_memory, projector_bytes, with_defaults
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
    copies = facts.size if settings.kernels == "auto" else 0
    pair = _pair(settings, facts)
    return facts.size + copies + model_needs(settings, facts).cache(pair) + projector_bytes(settings)


def measured(settings: ModelSettings, facts: Facts | None, info: Footprint, slots: int) -> int:
    """Returns the bytes of a loaded model with so many slots."""
    if settings.is_synthetic or facts is None:
        return estimate(settings, facts)
    context = info.shared_cells // slots or info.context
    cache = model_needs(settings, facts).cache(ContextPair(slots, context))
    return info.size + info.packed_bytes + cache + projector_bytes(settings)


def file_bytes(settings: ModelSettings) -> int:
    """Returns the size of a model's file; 0 where there is none."""
    return 0 if settings.is_synthetic or not os.path.isfile(settings.model) else os.path.getsize(settings.model)


def share(total: int, own: int, other_files: Sequence[int]) -> int:
    """Returns the bytes of a total that a model may take whose slots or context are fitted, 0 of no total.

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
