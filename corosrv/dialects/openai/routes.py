"""OpenAI's endpoints over any Worker: chat and text completions, and the list of models."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from flask import Blueprint, Response, request, url_for

from corosrv.base.errors import ModelNotFound, NotFound
from corosrv.base.waits import call_in_thread
from corosrv.contracts.jobs import ModelCard, Worker
from corosrv.dialects.generation.call import Call
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.generation.forks import ForkFields
from corosrv.dialects.generation.prompts import NUMBER_BYTES, EmbedsReader
from corosrv.dialects.openai import api_docs, completions, events
from corosrv.dialects.openai.answer_types import ControlAnswer
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.dialects.openai.structured_fields import input_tokens
from corosrv.web.http.reply import json_response, register_errors
from corosrv.web.http.siblings import AskOthers, OtherAnswer, no_others
from corosrv.web.http.terms import FROM_WORKER


def listing(worker: Worker, takes_embeds: bool = False) -> dict[str, Any]:
    """Makes the answer of GET /v1/models; `models` is for clients of Ollama, as llama-server has it.

    Clients of Anthropic read the same list, for which it says that there is no other page.
    `takes_embeds`: the setting prompt_embeds.
    """
    cards = _cards(worker)
    data = [_describe(card, takes_embeds) for card in cards]
    return {"object": "list", "data": data, "models": list(map(_describe_as_ollama, cards)), "has_more": False}


def find(worker: Worker, name: str, takes_embeds: bool = False) -> dict[str, Any]:
    """Makes the answer of GET /v1/models/{id}; knows aliases too. Raises ModelNotFound."""
    cards = _cards(worker)
    for card in cards:
        if name in (card.id, *card.aliases):
            return _describe(card, takes_embeds)
    if sum(not card.parent for card in cards) == 1:
        worker.check()  # an only model that cannot be used says so, whatever it is called
    raise ModelNotFound(name)


def _cards(worker: Worker) -> tuple[ModelCard, ...]:
    cards = worker.models()
    if not cards:
        worker.check()  # says why
    return cards


def _describe(card: ModelCard, takes_embeds: bool) -> dict[str, Any]:
    described = {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "corosrv",
        "aliases": list(card.aliases),
        "tags": list(card.tags),
        "status": status_of(card),
        "meta": _meta(card, takes_embeds),
        **_capabilities(card),
        "architecture": {"input_modalities": _modalities(card), "output_modalities": ["text"]},
        **for_anthropic(card.id, card.created),
    }
    return described | {"parent": card.parent} if card.parent else described


def for_anthropic(name: str, created: int) -> dict[str, Any]:
    """Returns the members of a model that clients of Anthropic read beside its id. `created`: Unix time."""
    return {
        "type": "model",
        "display_name": name,
        "created_at": f"{datetime.fromtimestamp(created, timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        "lifecycle": "active",
    }


def _capabilities(card: ModelCard) -> dict[str, Any]:
    """Returns the names of what a model can do; none for clients of Anthropic, to whom `capabilities` is an object."""
    return {} if "Anthropic-Version" in request.headers else {"capabilities": sorted(card.capabilities)}


def _modalities(card: ModelCard) -> list[str]:
    """Returns what a model reads, in the words of OpenRouter and of llama-server's router."""
    return ["text", "image"] if "images" in card.capabilities else ["text"]


def _meta(card: ModelCard, takes_embeds: bool) -> dict[str, Any]:
    meta = dict(card.meta)
    if card.row_width:
        meta["row_width"] = card.row_width
        if takes_embeds:
            meta["prompt_embeds"] = {
                "dtypes": list(NUMBER_BYTES), "n_embd": card.row_width, "max_rows": card.max_rows
            }  # fmt: skip
    return meta


def _describe_as_ollama(card: ModelCard) -> dict[str, Any]:
    # What is not known, or not told, is there and empty.
    return {
        "name": card.id,
        "model": card.id,
        "modified_at": "",
        "size": "",
        "digest": "",
        "type": "model",
        "description": "",
        "tags": list(card.tags),
        # llama-server's word for images stands there as well.
        "capabilities": sorted(card.capabilities | ({"multimodal"} if "images" in card.capabilities else set())),
        "parameters": "",
        "details": {
            "parent_model": card.parent,
            "format": "gguf",
            "family": "",
            "families": [],
            "parameter_size": "",
            "quantization_level": card.meta.get("ftype", ""),
        },
    }


def status_of(card: ModelCard) -> dict[str, Any]:
    """Describes the state as llama-server's router does: a model that failed is an unloaded one with a mark."""
    if card.status == "failed":
        return {"value": "unloaded", "failed": True}
    if card.progress:
        return {"value": card.status, "progress": card.progress}
    return {"value": card.status}


_STATUSES = ("unloaded", "failed", "downloading", "loading", "loaded")  # from the least on


def _stage(model: dict[str, Any]) -> int:
    status = model["status"]
    return _STATUSES.index("failed" if status.get("failed") else status["value"])


def _furthest(model: dict[str, Any], answers: Iterable[OtherAnswer]) -> dict[str, Any]:
    """Returns what is said of a model by the worker process in which it is furthest on its way into memory."""
    others = [msgspec.json.decode(answer.body) for answer in answers if answer.status == HTTPStatus.OK]
    return max(model, *others, key=_stage) if others else model


def _add_others(model_list: dict[str, Any], answers: Iterable[OtherAnswer]) -> dict[str, Any]:
    """Replaces each model of a list by what the worker process says in which it is furthest on its way into memory."""
    for answer in answers:
        other = msgspec.json.decode(answer.body) if answer.status == HTTPStatus.OK else {"data": []}
        for place, (here, there) in enumerate(zip(model_list["data"], other["data"], strict=False)):
            if here["id"] == there["id"] and _stage(there) > _stage(here):
                model_list["data"][place], model_list["models"][place] = there, other["models"][place]
    return model_list


def blueprint(flow: RequestFlow, ask_other_workers: AskOthers = no_others) -> Blueprint:
    """Makes the routes of chat and text completions and of the list of models.

    `ask_other_workers`: asks every other worker process the same; each loads models when it is asked for them.
    """
    routes = Blueprint("openai", __name__)

    def told_by_others(id: str) -> list[bytes]:
        answers = ask_other_workers(request, path=url_for(".forkable", id=id))
        return [answer.body for answer in answers if answer.status == HTTPStatus.OK]

    @routes.post("/v1/forkable/<id>")
    def forkable(id: str) -> Response:
        """Tells another worker process of an answer that is forked there."""
        if FROM_WORKER not in request.environ:
            raise NotFound("worker processes of this server alone ask for this")
        answer = flow.forked(ForkFields(of=id), None, lambda id: [])
        return Response(answer.to_told(), mimetype="application/vnd.msgpack")

    @routes.post("/v1/chat/completions")
    @routes.post("/chat/completions", endpoint="chat_short")
    @flow.once
    @api_docs.chat
    def chat() -> Response:
        return flow.answer(chat_call())

    def chat_call() -> Call:
        body = flow.receive(chat_schema.decoder)
        forked = None if body.fork is None else flow.forked(body.fork, body.model, told_by_others)
        model = body.model if forked is None else forked.card.id
        find_vocabulary = partial(flow.worker.vocabulary, model)
        card = flow.worker.card(model)
        return chat_parse.call(body, card, find_vocabulary, flow.intake(card), forked)

    @routes.post("/v1/chat/completions/control")
    @api_docs.control
    def control() -> Response:
        body = flow.receive(chat_schema.control_decoder)
        is_found = flow.end_thoughts(body.id) or any(
            answer.status == HTTPStatus.OK and msgspec.json.decode(answer.body, type=ControlAnswer).success
            for answer in ask_other_workers(request, msgspec.json.encode(body))
        )
        words = "no chat of this id with reasoning_control is being answered"
        return json_response(ControlAnswer(True) if is_found else ControlAnswer(False, words))

    @routes.post("/v1/chat/completions/input_tokens")
    @routes.post("/chat/completions/input_tokens", endpoint="count_short")
    @api_docs.count
    def count() -> Response:
        return json_response(input_tokens(flow.count(chat_call())))

    @routes.post("/v1/completions")
    @flow.once
    @api_docs.completion
    def complete() -> Response:
        body = flow.receive(completions.decoder)
        forked = None if body.fork is None else flow.forked(body.fork, body.model, told_by_others)
        model = body.model if forked is None else forked.card.id
        find_vocabulary = partial(flow.worker.vocabulary, model)
        card = flow.worker.card(model)
        images = flow.intake(card)
        embeds = EmbedsReader(flow.takes_embeds, partial(flow.worker.card, model), call_in_thread)
        return flow.answer(completions.call(body, card, find_vocabulary, images, embeds, forked))

    @routes.get("/v1/models")
    @routes.get("/models", endpoint="models_short")
    @api_docs.models
    def list_models() -> Response:
        listed = listing(flow.worker, flow.takes_embeds)
        is_settled = all(model["status"]["value"] == "loaded" for model in listed["data"])
        return json_response(listed if is_settled else _add_others(listed, ask_other_workers(request)))

    @routes.get("/v1/models/<path:name>")
    @api_docs.model
    def one_model(name: str) -> Response:
        described = find(flow.worker, name, flow.takes_embeds)
        is_settled = described["status"]["value"] == "loaded"
        return json_response(described if is_settled else _furthest(described, ask_other_workers(request)))

    register_errors(routes, events.body)
    return routes
