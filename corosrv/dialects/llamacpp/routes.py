"""Endpoints of llama-server's own, with their entries in the API document: parse, submit, answer.

Texts become tokens and back as llama-server does it.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from flask import Blueprint, Response, request
from msgspec import Meta

from corosrv.base.errors import NotOffered, NotSupported, Refused, Unavailable
from corosrv.base.processor import Turns
from corosrv.contracts.jobs import HasAdapters, HasSlots, Job, Messages, ModelCard, Vocabulary, Worker
from corosrv.dialects.generation.exchange import RequestFlow
from corosrv.dialects.generation.fields import Lora
from corosrv.dialects.generation.native import NativeCompletion
from corosrv.dialects.llamacpp import answers, loading, parse, slots
from corosrv.dialects.llamacpp.loading import Success, Switches
from corosrv.dialects.openai import events
from corosrv.dialects.openai.chat import parse as chat_parse
from corosrv.dialects.openai.chat import schema as chat_schema
from corosrv.dialects.openai.chat.schema import ChatBody
from corosrv.formats.bodies import check_text
from corosrv.images.intake import PROMPTS, images_in
from corosrv.web.groups import GenerateHeaders
from corosrv.web.http.lean_flask import caller
from corosrv.web.http.openapi import GENERATES, NEEDS_MODEL, READS, operation
from corosrv.web.http.reply import json_response, long_json_response, register_errors


class ModelQuery(msgspec.Struct):
    """The name of the model, where the server has several."""

    model: str | None = None


class PropsQuery(ModelQuery):
    autoload: Annotated[str, Meta(description="true: load the model first if it is not loaded")] | None = None


class SlotsQuery(ModelQuery):
    fail_on_no_slot: Annotated[str, Meta(description="anything: 503 while every slot is busy")] | None = None


class SlotQuery(ModelQuery, kw_only=True):
    action: Annotated[str, Meta(description="save, restore or erase")]


complete_docs = operation(
    "Text",
    "Continue a prompt, as llama-server does",
    images_in(PROMPTS),
    body=parse.NativeCompletionBody,
    answer=NativeCompletion | list[NativeCompletion],
    events=NativeCompletion,
    headers=GenerateHeaders,
    statuses=GENERATES,
    examples={
        "A prompt": {"prompt": "Once upon a time", "n_predict": 32},
        "Streamed": {"prompt": "Once upon a time", "n_predict": 32, "stream": True},
    },
)
infill_docs = operation(
    "Text",
    "Fill a gap",
    "For models whose vocabulary has tokens for it.",
    body=parse.InfillBody,
    answer=NativeCompletion | list[NativeCompletion],
    events=NativeCompletion,
    headers=GenerateHeaders,
    statuses=(*GENERATES, 501),
    examples={"A function": {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 16}},
)
tokenize_docs = operation(
    "Tokens",
    "Turn text into tokens",
    body=parse.TokenizeBody,
    answer=answers.TokenList,
    statuses=(*READS, *NEEDS_MODEL),
    examples={"With pieces": {"content": "The sea is wide.", "with_pieces": True}},
)
detokenize_docs = operation(
    "Tokens",
    "Turn tokens into text",
    body=parse.DetokenizeBody,
    answer=answers.Content,
    statuses=(*READS, *NEEDS_MODEL),
    examples={"Three tokens": {"tokens": [1, 2, 3]}},
)
apply_template_docs = operation(
    "Tokens",
    "Write a conversation as the model reads it",
    body=ChatBody,
    answer=answers.PromptText,
    statuses=GENERATES,
    examples={"A question": {"messages": [{"role": "user", "content": "Name three colours."}]}},
)
get_props_docs = operation(
    "Server",
    "Tell the server's properties",
    answer=answers.ServerProperties,
    statuses=NEEDS_MODEL,
    query=PropsQuery,
)
set_props_docs = operation(
    "Server", "Change the server's properties", body=dict[str, Any], answer=Success, statuses=(*READS, 501)
)
get_adapters_docs = operation(
    "Models", "List the LoRA adapters", answer=list[answers.ListedAdapter], statuses=NEEDS_MODEL, query=ModelQuery
)
set_adapters_docs = operation(
    "Models",
    "Scale the LoRA adapters",
    "For jobs that do not say; adapters that are not named get none of it.",
    body=Annotated[list[Lora], Meta(max_length=64)],
    answer=Success,
    statuses=(*READS, *NEEDS_MODEL),
    query=ModelQuery,
    examples={"None of any": []},
)
get_slots_docs = operation(
    "Server",
    "Show what the slots do",
    answer=list[answers.SlotDescription],
    statuses=(*NEEDS_MODEL, 501),
    query=SlotsQuery,
)
change_slot_docs = operation(
    "Server",
    "Keep a slot's content in a file",
    "Or read it back, or forget it, which needs no body.",
    body=parse.SlotFileBody,
    answer=answers.SlotFileAnswer,
    statuses=(*READS, *NEEDS_MODEL, 501),
    parameters={"slot": "its number"},
    query=SlotQuery,
    examples={"A file": {"filename": "slot.bin"}},
)


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

    def known_card(self, model: str | None) -> ModelCard:
        """Returns what is known of a model without loading it. May wait while its file is read; raises as `card`."""


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
    return request.args.get("model") or None


def _known_card(worker: LlamaWorker, name: str | None, loads: bool = False) -> ModelCard:
    """Returns what is known of a model; waits for one that is being loaded, and with `loads` for any."""
    card = worker.known_card(name)
    return worker.card(name) if loads or card.status in ("loading", "downloading") else card


def _add_completions(routes: Blueprint, flow: RequestFlow) -> None:
    @routes.post("/completion")
    @routes.post("/completions", endpoint="completions")
    @flow.once
    @complete_docs
    def complete() -> Response:
        body = flow.receive(parse.completion_decoder)
        card, vocabulary = _model(flow, body.model)
        return flow.answer(parse.completion(body, card, vocabulary, flow.intake(card)))

    @routes.post("/infill")
    @flow.once
    @infill_docs
    def infill() -> Response:
        body = flow.receive(parse.infill_decoder)
        return flow.answer(parse.filling(body, *_model(flow, body.model)))


def _add_tokens(routes: Blueprint, flow: RequestFlow) -> None:
    @routes.post("/tokenize")
    @tokenize_docs
    def tokenize() -> Response:
        body = flow.receive(parse.tokenize_decoder)
        return long_json_response(tokens_of(body, flow.worker.vocabulary(body.model)))

    @routes.post("/detokenize")
    @detokenize_docs
    def detokenize() -> Response:
        body = flow.receive(parse.detokenize_decoder)
        return json_response(text_of(body, flow.worker.vocabulary(body.model)))

    @routes.post("/apply-template")
    @apply_template_docs
    def apply_template() -> Response:
        body = flow.receive(chat_schema.decoder)
        card, vocabulary = _model(flow, body.model)
        job = chat_parse.call(body, card, lambda: vocabulary, flow.intake(card)).job
        assert isinstance(job, Job)
        prompt = job.prompts[0]
        assert isinstance(prompt, Messages)
        return json_response({"prompt": vocabulary.render(prompt)})


def _add_server(routes: Blueprint, flow: RequestFlow, worker: LlamaWorker, switches: Switches) -> None:
    @routes.get("/props")
    @get_props_docs
    def get_props() -> Response:
        loads = request.args.get("autoload") in ("true", "1")
        return json_response(loading.describe(_known_card(worker, _model_name(), loads), switches))

    @routes.post("/props")
    @set_props_docs
    def set_props() -> Response:
        if not switches.props:
            raise NotOffered("properties cannot be set here (COROSRV_PROPS=0)")
        for name in flow.receive(parse.props_decoder):
            raise NotSupported(f"{name[:64]} is no property that can be set while the server runs", name[:64])
        return json_response({"success": True})

    @routes.get("/lora-adapters")
    @get_adapters_docs
    def get_adapters() -> Response:
        adapters = worker.adapters(_model_name())
        return json_response([{"id": adapter.id, "path": adapter.name, "scale": adapter.scale} for adapter in adapters])

    @routes.post("/lora-adapters")
    @set_adapters_docs
    def set_adapters() -> Response:
        scales = flow.receive(parse.adapters_decoder)
        worker.set_adapters(_model_name(), {lora.id: lora.scale for lora in scales})
        return json_response({"success": True})


def _add_slots(routes: Blueprint, flow: RequestFlow, worker: LlamaWorker, switches: Switches) -> None:
    files = slots.SlotFiles(worker, switches.slot_save_path, switches.slot_save_bytes)

    @routes.get("/slots")
    @get_slots_docs
    def get_slots() -> Response:
        if not switches.slots:
            raise NotOffered("the list of slots is switched off (COROSRV_SLOTS_ENDPOINT=0)")
        name = _model_name()
        card, states = _known_card(worker, name), worker.slots(name)
        if request.args.get("fail_on_no_slot") and states and all(state.is_busy for state in states):
            raise Unavailable("every slot is busy")
        return json_response([slots.describe(state, card, caller()) for state in states])

    @routes.post("/slots/<slot>")
    @change_slot_docs
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
