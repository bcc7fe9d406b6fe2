"""Makes jobs of the texts that Ollama's clients want vectors of, and answers of the vectors."""

from __future__ import annotations

from collections.abc import Sequence

from corosrv.base.errors import NotSupported, Refused
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import Chunk, EmbedJob, Prompt, Text, Tokens
from corosrv.dialects.generation import embeds
from corosrv.dialects.ollama import schema
from corosrv.dialects.ollama.answers import OllamaEmbedding, OllamaEmbeddings, Stopwatch
from corosrv.dialects.ollama.parse import AskedModel
from corosrv.formats.bodies import check_text

_UNIT_LENGTH, _AS_IT_IS = 2, -1  # how a vector is normalised: see EmbedJob


def several_job(body: schema.OllamaEmbedBody, model: AskedModel) -> EmbedJob | None:
    """Makes a job with one vector for each text; None where there is none. Raises Refused, which names the parameter.

    A text that is longer than the context is cut, as Ollama does, unless the request has `truncate: false`.
    """
    _check_offered(model)
    if body.dimensions and body.dimensions != (size := model.card.meta.get("n_embd")):
        raise NotSupported(f"dimensions: this model's vectors have {size}, and cannot be cut", "dimensions")
    if body.input is None:
        raise Refused("input is required", "input", "missing_required_parameter")
    texts = [body.input] if isinstance(body.input, str) else body.input
    inputs = [_input(text, i, body, model) for i, text in enumerate(Turns().among(texts)) if text or len(texts) > 1]
    return EmbedJob(tuple(inputs), _UNIT_LENGTH, model=model.card.id) if inputs else None


def single_job(body: schema.OllamaEmbeddingBody, model: AskedModel) -> EmbedJob | None:
    """Makes the job of the older endpoint, which has one text; None where it is empty. Raises Refused."""
    _check_offered(model)
    if not body.prompt:
        return None
    return EmbedJob((Text(check_text(body.prompt, "prompt")),), _AS_IT_IS, model=model.card.id)


def several_answer(chunks: Sequence[Chunk], model: AskedModel, stopwatch: Stopwatch) -> OllamaEmbeddings:
    return OllamaEmbeddings(
        model.name,
        [embeds.floats(vector) for vector in embeds.in_order(chunks)],
        stopwatch.total,
        stopwatch.load,
        sum(embeds.prompt_tokens(chunks)),
    )


def single_answer(chunks: Sequence[Chunk]) -> OllamaEmbedding:
    return OllamaEmbedding(embeds.floats(embeds.in_order(chunks)[0]) if chunks else [])


def _check_offered(model: AskedModel) -> None:
    if "embeddings" not in model.card.capabilities:
        raise model.lacks("embeddings", "model")
    if model.card.meta.get("pooling") == "none":
        raise NotSupported(
            "this model gives a vector for each token (COROSRV_POOLING=none), for which there is no room in this "
            "answer; use /embeddings",
            "model",
        )


def _input(text: str, number: int, body: schema.OllamaEmbedBody, model: AskedModel) -> Prompt:
    param = f"input[{number}]" if isinstance(body.input, list) else "input"
    if not text:
        raise Refused(f"{param} must not be empty", param)
    checked = check_text(text, param)
    context = int(model.card.meta.get("n_ctx", 0))
    if body.truncate is False or not context or len(checked.encode()) < context:  # no token has less than a byte
        return Text(checked)
    tokens = model.find_vocabulary().tokenize(checked, add_special=True, parse_special=True, param=param)
    return Tokens(tuple(tokens[:context])) if len(tokens) > context else Text(checked)
