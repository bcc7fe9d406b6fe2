"""Makes the native engine's options of settings, and refuses what this libllama cannot do; makes requests' defaults.

The placement on devices, the kernels' verdict, and the sizes are translated to libllama's numbers. `model_card` says
for clients and dialects what a model is that was opened so.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from corosrv.base.errors import ModelFailed, SettingsError
from corosrv.contracts.jobs import Defaults, ModelCard
from corosrv.contracts.settings import ModelSettings, parse_biases, parse_samplers, parse_sampling, parse_texts, sources
from corosrv.contracts.settings.placement import SPLIT_MODES
from corosrv.models.engine import libllama
from corosrv.models.engine.binding import FINGERPRINT, GrammarLimits, ModelInfo, Options, Placement, Synthetic
from corosrv.models.engine.libllama import Device, physical_cores
from corosrv.models.engine.probe import Verdict

if TYPE_CHECKING:
    from corosrv.models.engine.vocabulary import EngineVocabulary

log = logging.getLogger("corosrv.engine")

_CACHE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_NUMA = {"": 0, "distribute": 1, "isolate": 2, "numactl": 3}
_ROPE_SCALINGS = {"": -1, "none": 0, "linear": 1, "yarn": 2}
_LOAD_MODES = {(True, False): -1, (False, False): 0, (False, True): 2, (True, True): 3}  # by mmap and mlock


def placement(settings: ModelSettings, devices: Sequence[Device]) -> Placement:
    """Returns the native placement. Raises ModelFailed for devices that are not among these."""
    check_devices(settings, devices)
    return Placement(
        gpu_layers=int(settings.gpu_layers) if settings.gpu_layers.isdigit() else -1,
        devices=settings.devices,
        split_mode=SPLIT_MODES.index(settings.split_mode),
        main_gpu=settings.main_gpu,
        tensor_split=tuple(float(part) for part in sources.split_words(settings.tensor_split)),
        flash_attn=_FLASH_ATTN[settings.flash_attn],
        load_mode=_LOAD_MODES[settings.mmap, settings.mlock],
        numa=_NUMA[settings.numa],
        cache_type_k=_CACHE_TYPES[settings.cache_type_k],
        cache_type_v=_CACHE_TYPES[settings.cache_type_v],
        rope_scaling=_ROPE_SCALINGS[settings.rope_scaling],
        rope_freq_base=settings.rope_freq_base,
        rope_freq_scale=settings.rope_freq_scale,
        yarn_ext_factor=settings.yarn_ext_factor,
        yarn_attn_factor=settings.yarn_attn_factor,
        yarn_beta_fast=settings.yarn_beta_fast,
        yarn_beta_slow=settings.yarn_beta_slow,
        yarn_orig_ctx=settings.yarn_orig_ctx,
    )


def check_devices(settings: ModelSettings, devices: Sequence[Device]) -> None:
    """Raises ModelFailed for an unknown device, and for a setting of GPUs where there is none."""
    gpus = [device for device in devices if not device.is_processor]
    known = [device.name for device in gpus]
    for name in settings.devices:
        if name not in (*known, "none"):
            others = f"the devices are {', '.join(known)}, and none" if known else "it has the processor alone (none)"
            raise ModelFailed(f"COROSRV_DEVICE: libllama has no device '{name}' here; {others}. {BUILD_FOR_GPU}")
    name = settings.names_gpu
    if name and not gpus:
        raise ModelFailed(f"COROSRV_{name.upper()} needs a GPU, and this libllama sees none. {BUILD_FOR_GPU}")
    n_parts = len(sources.split_words(settings.tensor_split))
    if n_parts > len(gpus):
        raise ModelFailed(f"COROSRV_TENSOR_SPLIT has {n_parts} parts, for {len(gpus)} devices")
    if settings.main_gpu and settings.main_gpu >= len(gpus):
        raise ModelFailed(f"COROSRV_MAIN_GPU is {settings.main_gpu}, and the devices are 0 to {len(gpus) - 1}")


BUILD_FOR_GPU = "Build it for one with CMAKE_ARGS=-DGGML_CUDA=on make install (docs/guide/models.md: Other devices)"


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
        candidates=settings.candidates,
        copy_bytes=copy_bytes,
        queue_s=settings.queue_timeout_s,
        stall_s=settings.stall_timeout_s,
        drafted_rows=settings.drafted_rows,
        draft=settings.model_draft,
        draft_p_min=settings.draft_p_min,
        draft_context=settings.ctx_draft,
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


def draft_options(options: Options) -> Options:
    """Returns the options that open the draft model alone, for its trial."""
    return replace(
        options, model=options.draft, draft="", adapters=(), context=options.draft_context or options.context
    )


_DRAWN = (
    "temp", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
    "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay",
)  # fmt: skip
_WRITTEN = {"samplers": parse_samplers, "dry_sequence_breakers": parse_texts, "logit_bias": parse_biases}
_KEYS_IN_FILES = {  # and the settings in whose place they are
    "general.sampling.temp": "temp",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}


def sampling_defaults(settings: ModelSettings, info: ModelInfo) -> Defaults:
    """Returns what requests get that do not say it: as the operator chose, else as the model's file says."""
    chosen = _sampling_of_file(settings.names[0], info.sampling)
    chosen |= {name: value for name in _DRAWN if (value := getattr(settings, name)) is not None}
    chosen |= {name: parse(text) for name, parse in _WRITTEN.items() if (text := getattr(settings, name))}
    if settings.ignore_eos:
        chosen["ignore_eos"] = True
    if grammar := settings.answer_grammar:
        chosen |= {"grammar": grammar, "grammar_param": ""}
    if "top_k" in chosen:
        chosen["top_k"] = max(chosen["top_k"], 0)  # -1 keeps all, as in requests
    return Defaults(
        max_tokens=None if settings.n_predict == -1 else settings.n_predict,
        temperature=chosen.pop("temp", Defaults().temperature),
        seed=None if settings.seed == -1 else settings.seed,
        more=chosen,
        stop=parse_texts(settings.stop),
        n_keep=settings.keep,
        share_prefix=settings.cache_prompt,
        normalize=settings.embd_normalize,
    )


def _sampling_of_file(model: str, lines: str) -> dict[str, Any]:
    """Returns the settings that a file has; logs those that cannot be used."""
    values: dict[str, Any] = {}
    for line in lines.splitlines():
        key, _, text = line.partition("=")
        try:
            if (name := _KEYS_IN_FILES.get(key)) is None:
                raise SettingsError("there is no such setting")
            values[name] = parse_sampling(name, text)
        except SettingsError as error:
            log.warning("model %s: %.40r of its file's %s is ignored: %s", model, text, key, error)
    return values


def model_card(settings: ModelSettings, info: ModelInfo, vocabulary: EngineVocabulary) -> ModelCard:
    traits = vocabulary.traits
    # Other kernels round otherwise: the same seed may then give another text.
    kernels = "k" if info.own_kernels else ""
    built_with = "synthetic" if settings.is_synthetic else FINGERPRINT[:10]
    card = ModelCard(
        settings.names[0],
        int(time.time()),
        settings.aliases,
        settings.labels,
        meta=_meta(info),
        fingerprint=f"b{built_with}{kernels}",
        capabilities=_capabilities(info, traits is not None),
        file=settings.file,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        chat_template=vocabulary.chat_template,
        template_abilities=vocabulary.template_abilities,
        slots=settings.slots,
        row_width=info.row_width,
        max_rows=info.context - 1 if info.row_width else 0,  # a token of the answer has to fit as well
        grammar_bytes=settings.grammar_bytes,
        grammar_rules=settings.grammar_rules,
        grammar_repetitions=settings.grammar_repetitions,
        defaults=sampling_defaults(settings, info),
    )
    if traits is None:
        return card
    return dataclasses.replace(
        card,
        call_format=traits.call_format,
        answer_format=traits.answer,
        reasons=settings.reasoning != "off",
        splits_reasoning=settings.reasoning_format != "none",
        repeats_reasoning=settings.reasoning_format == "deepseek-legacy",
        thought_tokens=None if settings.reasoning_budget < 0 else settings.reasoning_budget,
        thought_message=settings.reasoning_budget_message,
    )


def _meta(info: ModelInfo) -> dict[str, Any]:
    return {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.context,
        "n_ctx_shared": info.shared_cells,
        "n_ctx_train": info.context_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.size,
        "ftype": info.ftype,
        "pooling": info.pooling,
    }


def _capabilities(info: ModelInfo, has_template: bool) -> frozenset[str]:
    capabilities = set()
    if info.generates:
        capabilities |= {"completion"} | ({"chat", "tools"} if has_template else set())
        capabilities |= set() if info.infill is None else {"infill"}
    if info.pooling == "rank":
        capabilities.add("rerank")
    elif info.n_vector:
        capabilities.add("embeddings")
    return frozenset(capabilities)
