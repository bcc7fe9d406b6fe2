"""Models loaded and unloaded by hand: POST /models/load and /models/unload, as llama-server's router has them."""

from __future__ import annotations

from typing import Protocol

import msgspec
from flask import Blueprint, Response, request

from corosrv.dialects.generation.fields import ModelName
from corosrv.web.http import body_reader
from corosrv.web.http.body_reader import BodyReader
from corosrv.web.http.openapi import NEEDS_MODEL, READS, operation


class Success(msgspec.Struct):
    """The answer when loading or unloading has begun."""

    success: bool


_SUCCESS = msgspec.json.encode(Success(True))
_STATUSES = (*READS, *NEEDS_MODEL)


class Loader(Protocol):
    """A worker that holds several models. Both methods return at once, and raise Refused or Unavailable."""

    def load(self, name: str) -> None: ...

    def unload(self, name: str) -> None: ...


class LoadingBody(msgspec.Struct):
    """The model to load or to unload."""

    model: ModelName


_decoder = msgspec.json.Decoder(LoadingBody)


def blueprint(loader: Loader, bodies: BodyReader, max_body_bytes: int) -> Blueprint:
    """Makes the two routes, which begin to load or unload; GET /models tells how it goes."""
    routes = Blueprint("loading", __name__)

    def model_name() -> str:
        return body_reader.decode(request, bodies.read(request, max_body_bytes), _decoder).model

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
        loader.load(model_name())
        return Response(_SUCCESS, mimetype="application/json")

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
        loader.unload(model_name())
        return Response(_SUCCESS, mimetype="application/json")

    return routes
