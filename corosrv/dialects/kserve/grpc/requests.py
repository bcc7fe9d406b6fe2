"""Requests of ModelInfer and ModelStreamInfer: read, checked, and without the parameters that are for the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import InvalidTensor, NotOffered, Refused
from corosrv.dialects.kserve.grpc import contents, parameters
from corosrv.dialects.kserve.object_inputs import OBJECT_REF, object_id
from corosrv.dialects.kserve.parameters import FrontParameters, split_parameters
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.wire.calls import ObjectInput


@dataclass(frozen=True, slots=True)
class GrpcCall:
    """One request. `is_raw`: its answer carries raw contents, as the request does.

    `object_inputs`: inputs whose content is an object's, which the server adds to `inputs`.
    """

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    object_inputs: list[ObjectInput]
    outputs: list[str] | None  # None: all
    parameters: Mapping[str, Parameter]  # for the handler
    front: FrontParameters
    is_raw: bool


RawContents = Sequence[bytes | memoryview]


def is_copied_only(request: Any, cut: RawContents) -> bool:
    """Returns whether reading a request copies contents at most, and looks at no single element of them."""
    is_raw = bool(cut or request.raw_input_contents)
    return is_raw and not any(tensor.datatype == "BYTES" for tensor in request.inputs)


def read(request: Any, cut: RawContents = ()) -> GrpcCall:
    """Reads a ModelInferRequest. `cut`: its raw contents, if they are not in it.

    Raises Refused for an invalid one, and NotOffered for shared memory.
    """
    raw_contents: RawContents = cut or request.raw_input_contents
    for tensor in (*request.inputs, *request.outputs):
        if any(name.startswith("shared_memory_") for name in tensor.parameters):
            raise NotOffered(f"tensor {tensor.name!r:.120}: shared memory is not offered; send the content")
    front, of_handler = split_parameters(parameters.read(request.parameters))
    object_inputs = _object_inputs(request.inputs)
    sent = _inputs_without(request.inputs, object_inputs)
    is_raw = bool(raw_contents) or not sent
    return GrpcCall(
        model=request.model_name,
        version=request.model_version,
        id=request.id,
        inputs=_raw_inputs(raw_contents, sent) if is_raw else _typed_inputs(sent),
        object_inputs=object_inputs,
        outputs=[output.name for output in request.outputs] or None,
        parameters=of_handler,
        front=front,
        is_raw=is_raw,
    )


def _object_inputs(inputs: Sequence[Any]) -> list[ObjectInput]:
    """Returns the inputs that refer to objects. Raises InvalidTensor for one that has contents as well."""
    object_inputs = []
    for position, tensor in enumerate(inputs):
        if OBJECT_REF not in tensor.parameters:
            continue
        if contents.has_typed(tensor):
            raise InvalidTensor(tensor.name, f"has both contents and {OBJECT_REF}")
        own = parameters.read(tensor.parameters)
        reference = object_id(tensor.name, own.pop(OBJECT_REF))
        object_inputs.append(ObjectInput(position, reference, tensor.name, tensor.datatype, list(tensor.shape), own))
    return object_inputs


def _inputs_without(inputs: Sequence[Any], object_inputs: Sequence[ObjectInput]) -> Sequence[Any]:
    """Returns the inputs whose content comes with the request."""
    if not object_inputs:
        return inputs
    positions = {tensor.position for tensor in object_inputs}
    return [tensor for position, tensor in enumerate(inputs) if position not in positions]


def _typed_inputs(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(_tensor(tensor, contents.raw_from_typed(tensor)) for tensor in inputs)


def _raw_inputs(raw_contents: RawContents, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    if len(raw_contents) != len(inputs):
        raise Refused(
            f"raw_input_contents has {len(raw_contents)} entries for {len(inputs)} inputs", "raw_input_contents"
        )
    for tensor in inputs:
        if contents.has_typed(tensor):
            raise InvalidTensor(tensor.name, "has typed contents, where raw_input_contents are there as well")
    return tuple(_tensor(tensor, raw) for tensor, raw in zip(inputs, raw_contents, strict=True))


def _tensor(tensor: Any, raw: bytes | memoryview) -> Tensor:
    own = parameters.read(tensor.parameters)
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw=raw, parameters=own)
