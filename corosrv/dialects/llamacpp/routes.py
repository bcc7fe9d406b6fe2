"""Endpoints of llama-server's own: parse, submit, answer. Texts become tokens and back as llama-server does it."""

from __future__ import annotations

from typing import Any, Protocol

from flask import Blueprint, Response, request

from corosrv.base.errors import NotOffered, NotSupported, Refused, Unavailable
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import HasAdapters, HasSlots, Job, Messages, ModelCard, Vocabulary, Worker
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.llamacpp import api_docs, loading, parse, slots
from corosrv.dialects.llamacpp.loading import Switches
from corosrv.dialects.openai import events
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.formats.bodies import check_text
from corosrv.web.http.lean_flask import caller
from corosrv.web.http.reply import json_response, long_json_response, register_errors


def tokens_of(body: parse.TokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Turns a content into tokens. Lets others run meanwhile where it is long. Raises Refused."""
    tokens = _tokens(body, vocabulary)
    if not body.with_pieces:
        return {"tokens": tokens}
    turns = Turns()
    return {"tokens": [{"id": token, "piece": _piece(vocabulary.piece(token))} for token in turns.among(tokens)]}


def _tokens(body: parse.TokenizeBody, vocabulary: Vocabulary) -> list[int]:
    pieces = [body.content] if isinstance(body.content, str) else body.content
    tokens: list[int] = []
    n_texts = 0
    for place, piece in enumerate(Turns().among(pieces)):
        if isinstance(piece, int):
            tokens.append(_checked(piece, place, vocabulary))
            continue
        n_texts += 1
        if n_texts > parse.MAX_TEXTS:
            raise Refused(f"content: at most {parse.MAX_TEXTS} texts in one list; send several lists", "content")
        begins = bool(body.add_special) and place == 0
        tokens += vocabulary.tokenize(check_text(piece, "content"), begins, body.parse_special is not False)
        if len(tokens) > parse.MAX_TOKENS:
            raise Refused(f"content: over {parse.MAX_TOKENS} tokens in one list; send several lists", "content")
    return tokens


def _checked(token: int, place: int, vocabulary: Vocabulary) -> int:
    if not 0 <= token < vocabulary.size:
        raise Refused(f"content[{place}]: {token} is no token id of this model", f"content[{place}]")
    return token


def _piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def text_of(body: parse.DetokenizeBody, vocabulary: Vocabulary) -> dict[str, Any]:
    """Turns token ids into text. Raises Refused for ids that the model does not have."""
    return {"content": vocabulary.spell(body.tokens).decode("utf-8", "replace")}


class LlamaWorker(Worker, HasSlots, HasAdapters, Protocol):
    """A Worker that also tells what llama-server tells."""


def blueprint(flow: RequestFlow, worker: LlamaWorker, switches: Switches) -> Blueprint:
    """Makes the routes that only llama-server's clients know. `worker` is the flow's."""
    routes = Blueprint("llamacpp", __name__)
    register_errors(routes, events.body)
    _add_completions(routes, flow)
    _add_tokens(routes, flow)
    _add_server(routes, flow, worker, switches)
    _add_slots(routes, flow, worker, switches)
    return routes


def _model(flow: RequestFlow, name: str | None) -> tuple[ModelCard, Vocabulary]:
    return flow.worker.card(name), flow.worker.vocabulary(name)


def _model_name() -> str | None:
    """Returns the model that a GET names in its query."""
    return request.args.get("model") or None


def _add_completions(routes: Blueprint, flow: RequestFlow) -> None:
    @routes.post("/completion")
    @routes.post("/completions", endpoint="completions")
    @flow.once
    @api_docs.complete
    def complete() -> Response:
        body = flow.receive(parse.completion_decoder)
        card, vocabulary = _model(flow, body.model)
        return flow.answer(parse.completion(body, card, vocabulary, flow.images.intake(card)))

    @routes.post("/infill")
    @flow.once
    @api_docs.infill
    def infill() -> Response:
        body = flow.receive(parse.infill_decoder)
        return flow.answer(parse.filling(body, *_model(flow, body.model)))


def _add_tokens(routes: Blueprint, flow: RequestFlow) -> None:
    @routes.post("/tokenize")
    @api_docs.tokenize
    def tokenize() -> Response:
        body = flow.receive(parse.tokenize_decoder)
        return long_json_response(tokens_of(body, flow.worker.vocabulary(body.model)))

    @routes.post("/detokenize")
    @api_docs.detokenize
    def detokenize() -> Response:
        body = flow.receive(parse.detokenize_decoder)
        return json_response(text_of(body, flow.worker.vocabulary(body.model)))

    @routes.post("/apply-template")
    @api_docs.apply_template
    def apply_template() -> Response:
        body = flow.receive(chat_schema.decoder)
        card, vocabulary = _model(flow, body.model)
        job = chat_parse.call(body, card, lambda: vocabulary, flow.images.intake(card)).job
        assert isinstance(job, Job)
        prompt = job.prompts[0]
        assert isinstance(prompt, Messages)
        return json_response({"prompt": vocabulary.render(prompt)})


def _add_server(routes: Blueprint, flow: RequestFlow, worker: LlamaWorker, switches: Switches) -> None:
    @routes.get("/props")
    @api_docs.get_props
    def get_props() -> Response:
        name = _model_name()
        card = next((card for card in worker.models() if name in (None, card.id, *card.aliases)), None)
        if card is None or not card.slots:  # its properties are known from its first load on, and need no other
            card = worker.card(name)
        return json_response(loading.describe(card, switches))

    @routes.post("/props")
    @api_docs.set_props
    def set_props() -> Response:
        if not switches.props:
            raise NotOffered("properties cannot be set here (COROSRV_PROPS=0)")
        for name in flow.receive(parse.props_decoder):
            raise NotSupported(f"{name[:64]} is no property that can be set while the server runs", name[:64])
        return json_response({"success": True})

    @routes.get("/lora-adapters")
    @api_docs.get_adapters
    def get_adapters() -> Response:
        adapters = worker.adapters(_model_name())
        return json_response([{"id": adapter.id, "path": adapter.name, "scale": adapter.scale} for adapter in adapters])

    @routes.post("/lora-adapters")
    @api_docs.set_adapters
    def set_adapters() -> Response:
        scales = flow.receive(parse.adapters_decoder)
        worker.set_adapters(_model_name(), {lora.id: lora.scale for lora in scales})
        return json_response({"success": True})


def _add_slots(routes: Blueprint, flow: RequestFlow, worker: LlamaWorker, switches: Switches) -> None:
    files = slots.SlotFiles(worker, switches.slot_save_path, switches.slot_save_bytes)

    @routes.get("/slots")
    @api_docs.get_slots
    def get_slots() -> Response:
        if not switches.slots:
            raise NotOffered("the list of slots is switched off (COROSRV_SLOTS_ENDPOINT=0)")
        name = _model_name()
        card, states = worker.card(name), worker.slots(name)
        if request.args.get("fail_on_no_slot") and all(state.is_busy for state in states):
            raise Unavailable("every slot is busy")
        return json_response([slots.describe(state, card, caller()) for state in states])

    @routes.post("/slots/<slot>")
    @api_docs.change_slot
    def change_slot(slot: str) -> Response:
        if not switches.slot_save_path:
            raise NotOffered("slots are not kept in files here: set COROSRV_SLOT_SAVE_PATH to a folder")
        name, action = _model_name(), request.args.get("action", "")
        if action not in slots.ACTIONS:
            raise Refused(f"action must be one of {', '.join(slots.ACTIONS)}, not {action[:40]!r}", "action")
        number = slots.number(slot, worker.card(name).slots)
        return json_response(_act(action, name, number))

    def _act(action: str, model: str | None, slot: int) -> dict[str, Any]:
        if action == "erase":
            return files.erase(model, slot, caller())
        filename = flow.receive(parse.slot_file_decoder).filename
        act = files.save if action == "save" else files.restore
        return act(model, slot, filename, caller())
