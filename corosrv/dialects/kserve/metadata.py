"""Describes the server and its models in the v2 protocol, and answers about liveness and readiness.

The KServe SDK parses these answers, so they are never empty.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from flask import Response

from corosrv.base import __version__
from corosrv.base.errors import CorosrvError
from corosrv.contracts.jobs.infer import HandlerCard, ModelStanding
from corosrv.formats.tensors import TensorSpec
from corosrv.web.http.reply import json_response

EXTENSIONS = ["binary_tensor_data", "generate", "model_repository(index)", "capability"]
READY = "READY"
_UNVERSIONED = "1"  # in the index, where every row has a version


class ServerMetadata(msgspec.Struct):
    """Describes the server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(msgspec.Struct):
    """Describes an input or an output. A dimension of -1 may have any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """Describes a model. `versions`: those that a client may ask for; none if the model is unversioned."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelNames(msgspec.Struct):
    """Lists the models by name."""

    models: list[str]


class IndexRow(msgspec.Struct):
    """Describes one version of a model in the index. `state`: READY, LOADING or UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str


def server_metadata() -> ServerMetadata:
    return ServerMetadata("corosrv", __version__, EXTENSIONS)


def model_metadata(card: HandlerCard, standings: Iterable[ModelStanding]) -> ModelMetadata:
    """Describes the model that a card is of; `standings` tell its other versions."""
    versions = {model.card.version for model in _models(standings) if model.card.name == card.name}
    return ModelMetadata(
        card.name,
        sorted(versions - {""}),
        card.platform,
        [_tensor(spec) for spec in card.inputs],
        [_tensor(spec) for spec in card.outputs],
    )


def model_names(standings: Iterable[ModelStanding]) -> ModelNames:
    return ModelNames(sorted({model.card.name for model in _models(standings)}))


def index(standings: Iterable[ModelStanding], only_ready: bool = False) -> list[IndexRow]:
    """Lists every version of every model, by name."""
    rows = [
        IndexRow(model.card.name, model.card.version or _UNVERSIONED, model.state, model.reason)
        for model in _models(standings)
        if model.state == READY or not only_ready
    ]
    return sorted(rows, key=lambda row: (row.name, row.version))


def standing_of(card: HandlerCard, standings: Iterable[ModelStanding]) -> ModelStanding | None:
    return next((standing for standing in standings if standing.card.key == card.key), None)


def _models(standings: Iterable[ModelStanding]) -> Iterable[ModelStanding]:
    """Returns those that are asked for by name."""
    return [standing for standing in standings if standing.card.capability is None]


def _tensor(spec: TensorSpec) -> TensorMetadata:
    return TensorMetadata(spec.name, spec.datatype, list(spec.shape))


class LiveAnswer(msgspec.Struct):
    """Says that the server answers."""

    live: bool


class ReadyAnswer(msgspec.Struct, omit_defaults=True):
    """Says whether the server takes calls; `error` says why not."""

    ready: bool
    live: bool = False
    error: str = ""


class ModelReadyAnswer(msgspec.Struct, omit_defaults=True):
    """Says whether a model takes calls; `error` says why not."""

    name: str
    ready: bool
    error: str = ""


def ready() -> Response:
    return json_response(ReadyAnswer(ready=True, live=True))


def not_ready(error: CorosrvError) -> Response:
    return _with_retry(json_response(ReadyAnswer(ready=False, error=str(error)), 503), error.retry_after)


def model_ready(name: str, standing: ModelStanding | None) -> Response:
    """Answers for a known model, whose standing is None if no worker has it any more."""
    if standing is not None and standing.state == READY:
        return json_response(ModelReadyAnswer(name, ready=True))
    reason = standing.reason if standing is not None else ""
    words = f"the model '{name}' is not ready" + (f": {reason}" if reason else "")
    return _with_retry(json_response(ModelReadyAnswer(name, ready=False, error=words), 503), 1)


def _with_retry(answer: Response, seconds: int | None) -> Response:
    if seconds is not None:
        answer.headers["Retry-After"] = str(seconds)
    return answer
