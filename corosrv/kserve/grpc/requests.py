"""Requests of ModelInfer and ModelStreamInfer: read, checked, and without the parameters that are for the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corosrv.errors import InvalidTensor, NotOffered, Refused
from corosrv.kserve.grpc import contents, parameters
from corosrv.kserve.parameters import FrontParameters, split_parameters
from corosrv.tensors import Parameter, Tensor


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """One request. `is_raw`: its answer carries raw contents, as the request does."""

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: list[str] | None  # None: all
    parameters: Mapping[str, Parameter]  # for the handler
    front: FrontParameters
    is_raw: bool


def read(request: Any) -> GrpcCall:
    """Reads a ModelInferRequest. Raises Refused for an invalid one, and NotOffered for shared memory."""
    for tensor in (*request.inputs, *request.outputs):
        if any(name.startswith("shared_memory_") for name in tensor.parameters):
            raise NotOffered(f"tensor {tensor.name!r:.120}: shared memory is not offered; send the content")
    front, of_handler = split_parameters(parameters.read(request.parameters))
    is_raw = bool(request.raw_input_contents) or not request.inputs
    return GrpcCall(
        model=request.model_name,
        version=request.model_version,
        id=request.id,
        inputs=_raw_inputs(request) if is_raw else _typed_inputs(request),
        outputs=[output.name for output in request.outputs] or None,
        parameters=of_handler,
        front=front,
        is_raw=is_raw,
    )


def _typed_inputs(request: Any) -> tuple[Tensor, ...]:
    return tuple(_tensor(tensor, contents.raw_from_typed(tensor)) for tensor in request.inputs)


def _raw_inputs(request: Any) -> tuple[Tensor, ...]:
    raw_contents = request.raw_input_contents
    if len(raw_contents) != len(request.inputs):
        raise Refused(
            f"raw_input_contents has {len(raw_contents)} entries for {len(request.inputs)} inputs", "raw_input_contents"
        )
    for tensor in request.inputs:
        if contents.has_typed(tensor):
            raise InvalidTensor(tensor.name, "has typed contents, where raw_input_contents are there as well")
    return tuple(_tensor(tensor, raw) for tensor, raw in zip(request.inputs, raw_contents, strict=True))


def _tensor(tensor: Any, raw: bytes) -> Tensor:
    own = parameters.read(tensor.parameters)
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw=raw, parameters=own)
