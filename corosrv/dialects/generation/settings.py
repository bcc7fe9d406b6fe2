"""Describes the settings that a job is generated with, under llama-server's names."""

from __future__ import annotations

from typing import Any

from corosrv.contracts.jobs import Job, Sampling, Vocabulary, token_biases

_RANDOM_SEED = 2**32 - 1
# Members with the same name on both sides; the texts of a request are not among them.
_NUMBERS = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "mirostat", "mirostat_tau",
    "mirostat_eta", "adaptive_target", "adaptive_decay", "ignore_eos", "min_keep", "post_sampling_probs",
)  # fmt: skip


# What llama-server tells of more than there is here: its clients may count on the members.
_NEVER: dict[str, Any] = {
    "backend_sampling": False,
    "chat_format": "Content-only",
    "generation_prompt": "",
    "reasoning_format": "none",
    "reasoning_in_content": False,
    "speculative.types": "none",
}


def of_sampling(sampling: Sampling, max_tokens: int | None) -> dict[str, Any]:
    """Returns the numbers of a sampling, which tell nothing about the text of a request."""
    n_predict = -1 if max_tokens is None else max_tokens
    return {
        "seed": _RANDOM_SEED if sampling.seed is None else sampling.seed,
        **{name: getattr(sampling, name) for name in _NUMBERS},
        "max_tokens": n_predict,
        "n_predict": n_predict,
        "n_probs": max(sampling.n_probs, 0),
        "samplers": list(sampling.samplers),
        **_NEVER,
    }


def of_job(job: Job, stream: bool, vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns every setting of a job as llama-server writes it. May wait as `tokenize` does."""
    return without_biases(job, stream) | {"logit_bias": _biases(job.sampling, vocabulary)}


def without_biases(job: Job, stream: bool) -> dict[str, Any]:
    """Returns the settings of a job with no biases among them, for which its model has to be loaded."""
    sampling = job.sampling
    return {
        **of_sampling(sampling, job.max_tokens),
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(job.stop),
        "n_keep": job.n_keep,
        "n_discard": job.n_discard,
        "stream": stream,
        "logit_bias": [],
        "grammar": sampling.grammar,
        "grammar_lazy": bool(sampling.grammar_triggers),
        "grammar_triggers": list(sampling.grammar_triggers),
        "preserved_tokens": [],
        "cache_prompt": job.share_prefix,
        "id_slot": job.slot,
        "t_max_predict_ms": job.max_ms,
        "lora": [{"id": id, "scale": scale} for id, scale in job.lora or ()],
    }


def _biases(sampling: Sampling, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Lists the biases token by token; a token that is banned has -inf, which JSON writes as null."""
    banned = vocabulary.end_tokens if sampling.ignore_eos else ()
    biases = [{"bias": float("-inf"), "token": token} for token in banned]
    biases += [{"bias": bias, "token": token} for token, bias in token_biases(sampling.logit_bias, vocabulary)]
    return biases
