"""Models loaded and unloaded by hand (POST /models/load and /models/unload), as llama-server's router has them.

GET /props is here, too: properties of the server, and its defaults for requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from flask import Blueprint, Response, request

from corosrv.base import __version__
from corosrv.base.errors import Refused
from corosrv.contracts.jobs import Job, ModelCard
from corosrv.dialects.generation import native
from corosrv.dialects.generation.fields import ModelName
from corosrv.dialects.openai import routes as openai
from corosrv.images.intake import MEDIA_MARKER
from corosrv.web.http import body_reader
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.openapi import NEEDS_MODEL, READS, operation
from corosrv.web.http.siblings import AskOthers

if TYPE_CHECKING:
    from corosrv.models.pool import ModelPool


@dataclass(frozen=True, slots=True)
class Switches:
    """The endpoints that the operator switches on or off; see the settings of the same names."""

    slots: bool
    props: bool
    metrics: bool
    slot_save_path: str = ""
    slot_save_bytes: int = 0
    page: bool = False


def describe(card: ModelCard, switches: Switches) -> dict[str, Any]:
    """Makes the answer of GET /props; of a model that was never loaded it has what is known of its file.

    Tells no keys and no folders.
    """
    defaults, was_loaded = card.defaults, bool(card.fingerprint)
    job = Job(
        (),
        max_tokens=defaults.max_tokens,
        sampling=defaults.sampling(),
        stop=defaults.stop,
        n_keep=defaults.n_keep,
        share_prefix=defaults.share_prefix,
    )
    return {
        "default_generation_settings": {
            # What the model's file wants in place of a setting is known once it was loaded, as is the template's work.
            "params": native.settings_without_biases(job, True) | {"timings_per_token": False} if was_loaded else {},
            "n_ctx": card.meta.get("n_ctx", 0),
        },
        "total_slots": card.slots,
        "kv_unified": bool(card.meta.get("n_ctx_shared", 0)),
        "model_alias": card.id,
        "model_path": card.file,
        "model_ftype": card.meta.get("ftype", ""),
        "modalities": {"vision": "images" in card.capabilities, "audio": False, "video": False},
        "media_marker": MEDIA_MARKER,
        "chat_template": card.chat_template,
        "chat_template_caps": _template_caps(card.template_abilities) if was_loaded else {},
        "bos_token": card.bos,
        "eos_token": card.eos,
        "build_info": f"corosrv {__version__} {card.fingerprint}".rstrip(),
        "endpoint_slots": switches.slots,
        "endpoint_props": switches.props,
        "endpoint_metrics": switches.metrics,
        "is_sleeping": card.status != "loaded",
        "status": openai.status_of(card),
        "ui": switches.page,
        "ui_settings": {},
        "cors_proxy_enabled": False,
    }


def _template_caps(abilities: frozenset[str]) -> dict[str, bool]:
    """Tells what the chat template writes by itself; tools work here also where it does not."""
    return {
        "supports_system_role": "system" in abilities,
        "supports_tools": "tools" in abilities,
        "supports_tool_calls": "calls" in abilities,
        "supports_tool_results": "results" in abilities,
        "supports_reasoning": "reasoning" in abilities,
        "supports_preserve_reasoning": "reasoning" in abilities,
        "supports_object_arguments": "calls" in abilities,
        "supports_parallel_tool_calls": "calls" in abilities,
        "supports_reasoning_effort": False,
        # What a message consists of is put together before a template sees it.
        "supports_string_content": True,
        "supports_typed_content": False,
    }


class Success(msgspec.Struct):
    """The answer when loading or unloading has begun."""

    success: bool


_SUCCESS = msgspec.json.encode(Success(True))
_NOT_LOADED = b"model_not_loaded"  # why a model is not unloaded, where it may be loaded in another worker process
_STATUSES = (*READS, *NEEDS_MODEL)


class LoadingBody(msgspec.Struct):
    """The model to load or to unload."""

    model: ModelName


_decoder = msgspec.json.Decoder(LoadingBody)


def blueprint(loader: ModelPool, bodies: BodyReader, max_body_bytes: int, ask_other_workers: AskOthers) -> Blueprint:
    """Makes the two routes, which begin to load or unload; GET /models tells how it goes.

    `ask_other_workers` has every other worker process do the same, each of which counts its own requests.
    """
    routes = Blueprint("loading", __name__)

    def change(begin: Callable[[str], None]) -> Response:
        body = body_reader.decode(request, bodies.read(request, max_body_bytes), _decoder)
        others = ask_other_workers(request, msgspec.json.encode(body))
        for other in others:
            if other.status != HTTPStatus.OK and _NOT_LOADED not in other.body:
                return Response(other.body, other.status, mimetype="application/json")
        try:
            begin(body.model)
        except Refused as error:
            if error.code != _NOT_LOADED.decode() or all(other.status != HTTPStatus.OK for other in others):
                raise
        return Response(_SUCCESS, mimetype="application/json")

    @routes.post("/models/load")
    @operation(
        "Models",
        "Load a model",
        "Begins, and returns at once; the list of models tells how it goes. Idle models make room for it.",
        body=LoadingBody,
        answer=Success,
        statuses=_STATUSES,
    )
    def load() -> Response:
        return change(loader.load)

    @routes.post("/models/unload")
    @operation(
        "Models",
        "Unload a model",
        "Refused while jobs or waiting requests need it. The next request for it loads it again.",
        body=LoadingBody,
        answer=Success,
        statuses=_STATUSES,
    )
    def unload() -> Response:
        return change(loader.unload)

    return routes
