"""Fits a model of these settings into the memory that is there."""

from __future__ import annotations

import os
from dataclasses import replace

from corosrv.contracts.settings import ModelSettings
from corosrv.models.fitting.cache import CacheTypes
from corosrv.models.fitting.gguf import Facts
from corosrv.models.fitting.plan import DEFAULT_CONTEXT, DEFAULT_SLOTS, ContextPair, MemoryPlan, ModelNeeds, fit
from corosrv.models.fitting.room import Room

_DETERMINISTIC_TYPE = "bf16"


def model_needs(settings: ModelSettings, facts: Facts, gpu_share: float = 0.0) -> ModelNeeds:
    """Returns what decides about the memory of a model; `gpu_share`: of its layers."""
    types = CacheTypes(settings.cache_type_k, settings.cache_type_v)
    return ModelNeeds(
        facts=facts,
        types=CacheTypes(_DETERMINISTIC_TYPE, _DETERMINISTIC_TYPE) if settings.deterministic else types,
        rows=max(settings.batch, settings.slots),
        shares_context=settings.kv_unified,
        may_share_context=not settings.deterministic,
        may_copy=settings.kernels == "auto" and gpu_share < 1,
        prefix_bytes=settings.cache_bytes,
        more_bytes=projector_bytes(settings),
        gpu_share=gpu_share,
    )


def projector_bytes(settings: ModelSettings) -> int:
    """Returns the size of a projector file, which another process holds; 0 where there is none."""
    return os.path.getsize(settings.mmproj) if os.path.isfile(settings.mmproj) else 0


def gpu_share(settings: ModelSettings, facts: Facts) -> float:
    """Returns the share of the layers that go to GPUs where there are some."""
    if settings.device == "none":
        return 0.0
    if not settings.gpu_layers.isdigit():
        return 1.0
    return min(1.0, int(settings.gpu_layers) / (facts.n_layers + 1))


def plan_memory(settings: ModelSettings, facts: Facts, host: Room, gpu: Room | None = None) -> MemoryPlan:
    """Plans the memory of a model of a file. Raises ModelFailed for slots and a context that do not fit."""
    share = gpu_share(settings, facts) if gpu is not None else 0.0
    context = settings.ctx
    if facts.n_ctx_train and not settings.stretches_context:
        context = min(context, facts.n_ctx_train)
    host = host.at_most(settings.memory_bytes, "what the model may take")
    return fit(model_needs(settings, facts, share), ContextPair(settings.slots, context), host, gpu if share else None)


def with_plan(settings: ModelSettings, plan: MemoryPlan) -> ModelSettings:
    """Returns the settings with what the plan chose."""
    return replace(settings, slots=plan.pair.slots, ctx=plan.pair.context, cache_bytes=plan.prefix_bytes)


def with_defaults(settings: ModelSettings) -> ModelSettings:
    """Returns the settings of a model whose file tells nothing about its memory, none of them left open."""
    return replace(settings, slots=settings.slots or DEFAULT_SLOTS, ctx=settings.ctx or DEFAULT_CONTEXT)
