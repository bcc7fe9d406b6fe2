"""The card of an engine's model."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from corosrv.contracts.jobs import ModelCard
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.binding import FINGERPRINT, ModelInfo
from corosrv.models.engine.traits import Traits


def model_card(settings: ModelSettings, info: ModelInfo, traits: Traits | None) -> ModelCard:
    """`traits`: of the chat template; None where there is none."""
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
        slots=settings.slots,
        row_width=info.row_width,
        max_rows=info.context - 1 if info.row_width else 0,  # a token of the answer has to fit as well
        grammar_bytes=settings.grammar_bytes,
        grammar_rules=settings.grammar_rules,
        grammar_repetitions=settings.grammar_repetitions,
    )
    if traits is None:
        return card
    return replace(
        card,
        call_format=traits.call_format,
        answer_format=traits.answer,
        reasons=settings.reasoning != "off",
        splits_reasoning=settings.reasoning_format != "none",
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
