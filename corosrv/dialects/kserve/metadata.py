"""Describes the server and its models in the v2 protocol."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

import corosrv
from corosrv.contracts.jobs.infer import HandlerCard, ModelStanding
from corosrv.formats.tensors import TensorSpec

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
    return ServerMetadata("corosrv", corosrv.__version__, EXTENSIONS)


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
