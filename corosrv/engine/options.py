"""Makes the native engine's options of settings."""

from __future__ import annotations

import os

from corosrv.engine import libllama, probe
from corosrv.engine.binding import GrammarLimits, Options, Placement, Synthetic
from corosrv.engine.cpu import physical_cores
from corosrv.engine.placement import placement
from corosrv.settings import ModelSettings


def native_options(settings: ModelSettings, copy_bytes: int) -> Options:
    """Returns the options that open the native engine; `copy_bytes`: of weights in another order, at most.

    May wait while libllama is tried; raises ModelFailed.
    """
    synthetic = Synthetic(**settings.synthetic_options) if settings.is_synthetic else None  # type: ignore[arg-type]
    is_tried = synthetic is None and os.path.isfile(settings.model)
    n_threads = settings.threads or physical_cores()
    verdict = probe.verdict(settings.model, settings.kernels, n_threads) if is_tried else probe.Verdict.FAST
    return Options(
        model=settings.model,
        synthetic=synthetic,
        context=settings.ctx,
        slots=settings.slots,
        queue=settings.queue,
        tasks_of_owner=settings.queue_per_key,
        threads=n_threads,
        batch=settings.batch if synthetic is not None else max(settings.batch, settings.slots),
        step_ms=settings.step_ms,
        reader_bytes=settings.reader_bytes,
        cache_bytes=settings.cache_bytes,
        row_bytes=settings.row_bytes,
        kv_unified=settings.kv_unified,
        deterministic=settings.deterministic,
        context_shift=settings.context_shift,
        safe_load=verdict is probe.Verdict.SAFE,
        pooling=settings.pooling,
        adapters=tuple(path for path, _ in settings.adapters),
        kernels="ggml" if verdict is probe.Verdict.GGML else settings.kernels,
        copy_bytes=copy_bytes,
        queue_s=settings.queue_timeout_s,
        stall_s=settings.stall_timeout_s,
        placement=Placement() if synthetic is not None else placement(settings, libllama.devices()),
        grammars=GrammarLimits(
            settings.grammar_bytes, settings.grammar_depth, settings.grammar_rules,
            settings.grammar_repetitions, settings.grammar_elements, settings.grammar_token_ms,
        ),
    )  # fmt: skip
