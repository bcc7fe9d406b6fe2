"""Estimates a model's memory: its weights, their repacked copies, and the keys and values of all slots."""

from __future__ import annotations

import os

from corosrv.models.gguf import Facts
from corosrv.models.loadable import Footprint
from corosrv.settings import ModelSettings

_TOKEN_BYTES = 4  # what a made-up model keeps of each token: its id


def estimate(settings: ModelSettings, facts: Facts | None) -> int:
    """Estimates the bytes of a model that is not loaded, rather too many than too few; 0 without any facts."""
    if settings.is_synthetic:
        return settings.slots * settings.ctx * _TOKEN_BYTES
    if facts is None:
        return 0
    context = min(settings.ctx, facts.n_ctx_train or settings.ctx)
    # How much will be repacked is known afterwards: at most everything.
    copies = facts.size if settings.kernels == "auto" else 0
    return facts.size + copies + settings.slots * context * facts.kv_bytes_per_token + _projector_bytes(settings)


def measured(settings: ModelSettings, facts: Facts | None, info: Footprint) -> int:
    """Returns the bytes of a loaded model."""
    if settings.is_synthetic or facts is None:
        return estimate(settings, facts)
    cache = settings.slots * info.context * facts.kv_bytes_per_token
    return info.size + info.packed_bytes + cache + _projector_bytes(settings)


def _projector_bytes(settings: ModelSettings) -> int:
    """Returns the size of a projector file, which another process holds; 0 where there is none."""
    return os.path.getsize(settings.mmproj) if os.path.isfile(settings.mmproj) else 0
