"""Makes the native engine's options of settings."""

from __future__ import annotations

from msgspec.structs import replace

from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import libllama
from corosrv.models.engine.binding import GrammarLimits, Options, Placement, Synthetic
from corosrv.models.engine.cpu import physical_cores
from corosrv.models.engine.placement import placement
from corosrv.models.engine.probe import Verdict


def native_options(settings: ModelSettings, copy_bytes: int) -> Options:
    """Returns the options that open the native engine, if its trial goes well; see with_verdict.

    `copy_bytes`: of weights in another order, at most. Raises ModelFailed for devices that are not there.
    """
    synthetic = Synthetic(**settings.synthetic_options) if settings.is_synthetic else None  # type: ignore[arg-type]
    return Options(
        model=settings.model,
        synthetic=synthetic,
        context=settings.ctx,
        slots=settings.slots,
        queue=settings.queue,
        tasks_of_owner=settings.queue_per_key,
        threads=settings.threads or physical_cores(),
        batch=settings.batch if synthetic is not None else max(settings.batch, settings.slots),
        step_ms=settings.step_ms,
        reader_bytes=settings.reader_bytes,
        cache_bytes=settings.cache_bytes,
        row_bytes=settings.row_bytes,
        kv_unified=settings.kv_unified,
        deterministic=settings.deterministic,
        context_shift=settings.context_shift,
        pooling=settings.pooling,
        adapters=tuple(path for path, _ in settings.adapters),
        kernels=settings.kernels,
        copy_bytes=copy_bytes,
        queue_s=settings.queue_timeout_s,
        stall_s=settings.stall_timeout_s,
        placement=Placement() if synthetic is not None else placement(settings, libllama.devices()),
        grammars=GrammarLimits(
            settings.grammar_bytes, settings.grammar_depth, settings.grammar_rules,
            settings.grammar_repetitions, settings.grammar_elements, settings.grammar_token_ms,
        ),
    )  # fmt: skip


def with_verdict(options: Options, verdict: Verdict) -> Options:
    """Returns the options with which the model loads as the verdict allows."""
    kernels = "ggml" if verdict is Verdict.GGML else options.kernels
    return replace(options, safe_load=verdict is Verdict.SAFE, kernels=kernels)
