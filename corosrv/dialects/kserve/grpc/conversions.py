"""Makes calls of ModelInferRequest, and ModelInferResponse and ModelStreamInferResponse of their answers.

A request is checked here; parameters that are for the server do not reach the handler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import InvalidTensor, NotOffered, Refused
from corosrv.dialects.kserve.grpc import contents, incoming, protocol
from corosrv.dialects.kserve.parameters import OBJECT_REF, FrontParameters, object_id, split_parameters
from corosrv.formats.tensors import Parameter, Tensor
from corosrv.workers.wire.calls import AskEnd, AskOutputs, ObjectInput


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
    inputs, outputs = [*request.inputs], [*request.outputs]
    for tensor in (*inputs, *outputs):
        if any(name.startswith("shared_memory_") for name in tensor.parameters):
            raise NotOffered(f"tensor {tensor.name!r:.120}: shared memory is not offered; send the content")
    front, of_handler = split_parameters(contents.read(request.parameters))
    object_inputs = _object_inputs(inputs)
    sent = _inputs_without(inputs, object_inputs)
    is_raw = bool(raw_contents) or not sent
    return GrpcCall(
        model=request.model_name,
        version=request.model_version,
        id=request.id,
        inputs=_raw_inputs(raw_contents, sent) if is_raw else _typed_inputs(sent),
        object_inputs=object_inputs,
        outputs=[output.name for output in outputs] or None,
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
        own = contents.read(tensor.parameters)
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
    own = contents.read(tensor.parameters)
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw=raw, parameters=own)


FINAL = "triton_final_response"


def goes_raw(tensors: Sequence[Tensor], *, is_raw: bool) -> bool:
    """Returns whether these outputs travel raw, as they do as well if one of their datatypes has no typed field."""
    return is_raw or any(tensor.datatype not in contents.FIELDS for tensor in tensors)


def serialized(call_id: str, answer: AskOutputs, tensors: Sequence[Tensor], *, is_raw: bool) -> bytes:
    """Returns the bytes of a ModelInferResponse. Raises HandlerFailed for parameters that cannot be sent."""
    if not goes_raw(tensors, is_raw=is_raw):
        typed: bytes = response(call_id, answer, tensors, is_raw=False).SerializeToString()
        return typed
    message = _head(call_id, answer)
    for tensor in tensors:
        _add_output(message, tensor)
    return incoming.with_outputs(message.SerializeToString(), [tensor.raw for tensor in tensors])


def response(call_id: str, answer: AskOutputs, tensors: Sequence[Tensor], *, is_raw: bool) -> Any:
    """Makes a ModelInferResponse. Raises HandlerFailed for parameters that cannot be sent."""
    message = _head(call_id, answer)
    is_raw = goes_raw(tensors, is_raw=is_raw)
    for tensor in tensors:
        output = _add_output(message, tensor)
        if is_raw:
            message.raw_output_contents.append(bytes(tensor.raw))
        else:
            contents.add_typed(output.contents, tensor)
    return message


def _head(call_id: str, answer: AskOutputs) -> Any:
    message = protocol.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=call_id)
    contents.write(message.parameters, answer.parameters)
    return message


def _add_output(message: Any, tensor: Tensor) -> Any:
    """Adds a tensor without its content."""
    output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    contents.write(output.parameters, tensor.parameters)
    return output


def least_size(tensors: Sequence[Tensor], *, is_raw: bool) -> int:
    """Returns how many bytes the message of these outputs takes, or more."""
    if goes_raw(tensors, is_raw=is_raw):
        return sum(tensor.n_bytes for tensor in tensors)
    return sum(contents.least_typed_size(tensor) for tensor in tensors)


def empty_response(call_id: str, end: AskEnd) -> Any:
    """Makes a ModelInferResponse without outputs, for a call that has ended."""
    return protocol.ModelInferResponse(model_name=end.model, model_version=end.version, id=call_id)


def stream_response(message: Any, *, is_final: bool) -> Any:
    """Makes the message of a stream for one answer."""
    message.parameters[FINAL].bool_param = is_final
    return protocol.ModelStreamInferResponse(infer_response=message)


def stream_error(text: str, call_id: str, model: str) -> Any:
    """Makes the message of a stream for a request that failed."""
    message = protocol.ModelStreamInferResponse(error_message=text or "the request failed")
    message.infer_response.id = call_id
    message.infer_response.model_name = model
    message.infer_response.parameters[FINAL].bool_param = True
    return message
