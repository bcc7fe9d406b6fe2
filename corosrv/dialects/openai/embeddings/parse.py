"""Embeddings, the way in: bodies to jobs."""

from __future__ import annotations

from corosrv.base.errors import NotOffered, NotSupported, Refused
from corosrv.contracts.jobs import EmbedJob, ModelCard, Prompt, Text, Vocabulary
from corosrv.dialects.generation.prompts import PromptField, prompts
from corosrv.dialects.openai.embeddings import schema


def job(body: schema.EmbeddingBody, card: ModelCard, vocabulary: Vocabulary) -> EmbedJob:
    """Makes a job with one vector for each input. Raises Refused, which names the parameter."""
    _check_offered(card)
    if card.meta.get("pooling") == "none":
        raise NotSupported(
            "this model gives a vector for each token (COROSRV_POOLING=none), for which there is no room in this "
            "answer; use /embeddings",
            "model",
        )
    size = card.meta.get("n_embd")
    if body.dimensions is not None and body.dimensions != size:
        raise NotSupported(f"dimensions: this model's vectors have {size}, and cannot be cut", "dimensions")
    return EmbedJob(_inputs(body.input, "input", vocabulary), _normalize(body), model=body.model)


def native_job(body: schema.NativeBody, card: ModelCard, vocabulary: Vocabulary) -> EmbedJob:
    """Makes the same job, or one with a vector for each token where the server is set so."""
    _check_offered(card)
    param, value = ("input", body.input) if body.content is None else ("content", body.content)
    if value is None:
        raise Refused("content is required", "content", "missing_required_parameter")
    pools = card.meta.get("pooling") != "none"
    return EmbedJob(_inputs(value, param, vocabulary), _normalize(body), pools, body.model)


_UNIT_LENGTH = 2


def _check_offered(card: ModelCard) -> None:
    if "embeddings" not in card.capabilities:
        raise NotOffered(f"the model '{card.id}' gives no embeddings")


def _normalize(body: schema.EmbeddingFields) -> int:
    return _UNIT_LENGTH if body.embd_normalize is None else body.embd_normalize


def _inputs(value: PromptField, param: str, vocabulary: Vocabulary) -> tuple[Prompt, ...]:
    inputs = prompts(value, param, schema.MAX_INPUTS, vocabulary)
    for number, prompt in enumerate(inputs):
        if isinstance(prompt, Text) and not prompt.text:
            place = param if len(inputs) == 1 else f"{param}[{number}]"
            raise Refused(f"{place} must not be empty", place)
    return inputs
