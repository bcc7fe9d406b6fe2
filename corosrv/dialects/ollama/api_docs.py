"""Describes Ollama's endpoints for the API document."""

from __future__ import annotations

from typing import Any

from corosrv.dialects.ollama import answers, catalog, schema
from corosrv.images.intake import images_in
from corosrv.web.groups.routes import GenerateHeaders
from corosrv.web.http.openapi import GENERATES, NEEDS_MODEL, READS, operation
from corosrv.web.http.terms import QueueHeaders

TAG = "Ollama"
_STREAM = (
    "Unless `stream` is false, the answer comes as lines of JSON, of which the last has `done`, counts, and times in "
    "nanoseconds. Without a prompt the model is loaded, and with `keep_alive: 0` unloaded. "
)
_QUESTION = {"model": "NAME", "messages": [{"role": "user", "content": "Name three colours."}], "stream": False}


def _operation(summary: str, text: str = "", **members: Any) -> Any:
    return operation(TAG, summary, text, error=answers.OllamaError, **members)


chat = _operation(
    "Answer a conversation, as Ollama does",
    _STREAM + images_in("`images` of a user's message and of a tool's"),
    body=schema.OllamaChatBody,
    answer=answers.OllamaChatLine,
    lines=answers.OllamaChatLine,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A question": _QUESTION, "Streamed": _QUESTION | {"stream": True, "options": {"num_predict": 64}}},
)
generate = _operation(
    "Answer a prompt, as Ollama does",
    _STREAM + "`raw` leaves the chat template out; `suffix` fills a gap. " + images_in("`images`"),
    body=schema.OllamaGenerateBody,
    answer=answers.OllamaTextLine,
    lines=answers.OllamaTextLine,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A prompt": {"model": "NAME", "prompt": "Why is the sky blue?", "stream": False}},
)
embed = _operation(
    "Turn texts into vectors, as Ollama does",
    "Texts that are longer than the context are cut, unless `truncate` is false.",
    body=schema.OllamaEmbedBody,
    answer=answers.OllamaEmbeddings,
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"Two texts": {"model": "NAME", "input": ["The sea is wide.", "The ocean is vast."]}},
)
embedding = _operation(
    "Turn a text into a vector, as older clients of Ollama ask",
    body=schema.OllamaEmbeddingBody,
    answer=answers.OllamaEmbedding,
    headers=QueueHeaders,
    statuses=(*GENERATES, 501),
    examples={"A text": {"model": "NAME", "prompt": "The sea is wide."}},
)
tags = _operation("List the models, as Ollama does", answer=catalog.TaggedList, statuses=(503,))
running = _operation("List the models that are loaded, as Ollama does", answer=catalog.RunningList, statuses=(503,))
show = _operation(
    "Describe a model, as Ollama does",
    "A model that is not loaded is not loaded for it: no more is told than the head of its file says.",
    body=schema.ShowBody,
    answer=catalog.ShownModel,
    statuses=(*READS, *NEEDS_MODEL, 501),
    examples={"A model": {"model": "NAME"}},
)
version = _operation("Tell which release of Ollama this API is of", answer=catalog.ApiVersion)
pull = _operation(
    "Download a model, as Ollama does",
    "Of those that this server's operator has named on a hub (`--model hf:OWNER/REPO:Q4_K_M`); it is loaded then.",
    body=schema.PullBody,
    answer=answers.PullLine,
    lines=answers.PullLine,
    statuses=(*READS, *NEEDS_MODEL, 500, 501),
    examples={"A model": {"model": "NAME", "stream": False}},
)
delete = _operation(
    "Is refused",
    "Models are the operator's to remove: `corosrv models rm NAME`.",
    body=schema.NamedBody,
    statuses=(*READS, *NEEDS_MODEL, 501),
)
