"""Embeddings: bodies to jobs, vectors to answers, in OpenAI's shape and in llama-server's own, and their endpoints.

Both go over any Worker whose model embeds. The types of bodies and answers are those of the API document.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from flask import Blueprint, Response
from msgspec import Meta

from corosrv.base.errors import NotOffered, NotSupported, Refused
from corosrv.contracts.jobs import EmbedJob, ModelCard, Prompt, Text, Vocabulary
from corosrv.dialects.generation.call import floats, prompt_tokens_of, vectors_of
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.generation.fields import ModelName, Priority
from corosrv.dialects.generation.prompts import PromptField, prompts
from corosrv.dialects.openai import events
from corosrv.web.http.openapi import GENERATES, operation
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.http.terms import QueueHeaders


class ReadUsage(msgspec.Struct):
    """Usage of a job that generates nothing: only the tokens read count."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector: numbers, or their float32, little-endian, in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    encoding_format: Literal["base64"] | msgspec.UnsetType = msgspec.UNSET


class EmbeddingList(msgspec.Struct):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: ReadUsage


class NativeEmbedding(msgspec.Struct):
    """The vectors of one input: one, or one of each token."""

    index: int
    embedding: list[list[float]]


def usage(prompt_tokens: Sequence[int]) -> ReadUsage:
    """Returns the usage of a job that generates nothing: only the tokens read count."""
    total = sum(prompt_tokens)
    return ReadUsage(total, total)


def embeddings(
    vectors: Sequence[bytes], prompt_tokens: Sequence[int], card: ModelCard, in_base64: bool = False
) -> EmbeddingList:
    """Makes OpenAI's answer; in base64 a vector is its float32, little-endian."""
    encode = _in_base64 if in_base64 else _in_numbers
    return EmbeddingList("list", card.id, [encode(i, vector) for i, vector in enumerate(vectors)], usage(prompt_tokens))


def _in_numbers(index: int, vector: bytes) -> Embedding:
    return Embedding("embedding", index, floats(vector))


def _in_base64(index: int, vector: bytes) -> Embedding:
    return Embedding("embedding", index, base64.b64encode(vector).decode(), "base64")


def native(vectors: Sequence[bytes], prompt_tokens: Sequence[int], pooled: bool) -> list[NativeEmbedding]:
    """Makes llama-server's answer: a list of vectors for each input, one of each token if they are not pooled."""
    counts = [1 if pooled else n_tokens for n_tokens in prompt_tokens]
    return [
        NativeEmbedding(i, _rows(floats(vector), n_rows))
        for i, (vector, n_rows) in enumerate(zip(vectors, counts, strict=True))
    ]


def _rows(numbers: list[float], n_rows: int) -> list[list[float]]:
    size = len(numbers) // n_rows
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]


MAX_INPUTS = 2048


class EmbeddingFields(msgspec.Struct, kw_only=True):
    model: ModelName | None = None
    priority: Priority | None = None
    embd_normalize: Annotated[int, Meta(ge=-1, le=100)] | None = None


class EmbeddingBody(EmbeddingFields, kw_only=True):
    input: PromptField
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


class NativeBody(EmbeddingFields, kw_only=True):
    """llama-server's, which knows the texts under either name."""

    content: PromptField | None = None
    input: PromptField | None = None


decoder = msgspec.json.Decoder(EmbeddingBody)
native_decoder = msgspec.json.Decoder(NativeBody)


_TAG = "Embeddings"
_STATUSES = (*GENERATES, 501)


embed_operation = operation(
    _TAG,
    "Turn texts into vectors",
    body=EmbeddingBody,
    answer=EmbeddingList,
    headers=QueueHeaders,
    statuses=_STATUSES,
    examples={"Two texts": {"input": ["The sea is wide.", "The ocean is vast."]}},
)
embed_native_operation = operation(
    _TAG,
    "Turn texts into vectors, as llama-server does",
    body=NativeBody,
    answer=list[NativeEmbedding],
    headers=QueueHeaders,
    statuses=_STATUSES,
    examples={"A text": {"content": "The sea is wide."}},
)


def embed_job(body: EmbeddingBody, card: ModelCard, vocabulary: Vocabulary) -> EmbedJob:
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
    return EmbedJob(_inputs(body.input, "input", vocabulary), _normalize(body, card), model=body.model)


def native_job(body: NativeBody, card: ModelCard, vocabulary: Vocabulary) -> EmbedJob:
    """Makes the same job, or one with a vector for each token where the server is set so."""
    _check_offered(card)
    param, value = ("input", body.input) if body.content is None else ("content", body.content)
    if value is None:
        raise Refused("content is required", "content", "missing_required_parameter")
    pools = card.meta.get("pooling") != "none"
    return EmbedJob(_inputs(value, param, vocabulary), _normalize(body, card), pools, body.model)


def _check_offered(card: ModelCard) -> None:
    if "embeddings" not in card.capabilities:
        raise NotOffered(f"the model '{card.id}' gives no embeddings")


def _normalize(body: EmbeddingFields, card: ModelCard) -> int:
    return card.defaults.normalize if body.embd_normalize is None else body.embd_normalize


def _inputs(value: PromptField, param: str, vocabulary: Vocabulary) -> tuple[Prompt, ...]:
    inputs = prompts(value, param, MAX_INPUTS, vocabulary)
    for number, prompt in enumerate(inputs):
        if isinstance(prompt, Text) and not prompt.text:
            place = param if len(inputs) == 1 else f"{param}[{number}]"
            raise Refused(f"{place} must not be empty", place)
    return inputs


def blueprint(flow: RequestFlow, is_on: bool) -> Blueprint:
    """Makes the routes of OpenAI and llama-server's own. `is_on`: where it is off, they answer 501."""
    routes = Blueprint("embeddings", __name__)
    register_errors(routes, events.body)

    @routes.before_request
    def check_on() -> None:
        if not is_on:
            raise NotOffered("embeddings are switched off (COROSRV_EMBEDDINGS=0)")

    @routes.post("/v1/embeddings")
    @flow.once
    @embed_operation
    def embed() -> Response:
        body = flow.receive(decoder)
        card = flow.worker.card(body.model)
        job = embed_job(body, card, flow.worker.vocabulary(body.model))
        chunks = flow.collect(job, body.priority)
        in_base64 = body.encoding_format == "base64"
        return json_response(embeddings(vectors_of(chunks), prompt_tokens_of(chunks), card, in_base64))

    @routes.post("/embedding")
    @routes.post("/embeddings", endpoint="native_embeddings")
    @flow.once
    @embed_native_operation
    def embed_native() -> Response:
        body = flow.receive(native_decoder)
        job = native_job(body, flow.worker.card(body.model), flow.worker.vocabulary(body.model))
        chunks = flow.collect(job, body.priority)
        return json_response(native(vectors_of(chunks), prompt_tokens_of(chunks), job.pooling))

    return routes
