"""Makes calls of ModelInferRequest, and ModelInferResponse and ModelStreamInferResponse of their answers.

A request is checked here; parameters that are for the server do not reach the handler. Contents are converted between
typed fields and tensors' raw form: typed fields are wider than some datatypes (an INT8 travels as int32), and numbers
out of range are refused.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import HandlerFailed, InvalidTensor, NotOffered, Refused
from corosrv.dialects.kserve.grpc import incoming, protocol
from corosrv.dialects.kserve.parameters import OBJECT_REF, FrontParameters, object_id, split_parameters
from corosrv.formats.tensors import DATATYPES, Parameter, Tensor
from corosrv.formats.tensors import elements as shapes
from corosrv.workers.wire.calls import AskEnd, AskOutputs, ObjectInput

FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}  # FP16 and BF16 have none: they travel raw

_PIECE = 65_536  # elements that are converted while no other thread runs


def has_typed(tensor: Any) -> bool:
    """Returns whether a tensor of a message has typed contents."""
    return tensor.HasField("contents") and bool(tensor.contents.ListFields())


def raw_from_typed(tensor: Any) -> bytes:
    """Returns the raw form of an input's typed contents.

    Raises InvalidTensor for two typed fields, one that does not belong to the datatype, a wrong count and a number out
    of range.
    """
    name, datatype = tensor.name, tensor.datatype
    if datatype not in DATATYPES:
        raise InvalidTensor(name, f"has the unknown datatype {datatype[:40]!r}")
    if datatype not in FIELDS:
        raise InvalidTensor(name, f"has the datatype {datatype}, which travels in raw_input_contents only")
    field = FIELDS[datatype]
    other_fields = [present.name for present, _ in tensor.contents.ListFields() if present.name != field]
    if other_fields:
        raise InvalidTensor(name, f"has {' and '.join(other_fields)}, where {datatype} travels in {field}")
    values = getattr(tensor.contents, field)
    n_elements = shapes.count(name, shapes.sizes(name, tensor.shape))
    if len(values) != n_elements:
        raise InvalidTensor(
            name, f"has {len(values)} elements, where the shape {list(tensor.shape)} needs {n_elements}"
        )
    return _pack(name, datatype, values)


def _pack(name: str, datatype: str, values: Any) -> bytes:
    if datatype == "BYTES":
        return b"".join(piece for value in values for piece in (len(value).to_bytes(4, "little"), value))
    if datatype == "BOOL":
        return b"".join(bytes(piece) for piece in _pieces(values))
    numbers = array.array(DATATYPES[datatype].format)
    try:
        for piece in _pieces(values):
            numbers.extend(piece)
    except OverflowError:
        kind = DATATYPES[datatype]
        wrong = next(value for value in values if not kind.least <= value <= kind.most)
        raise InvalidTensor(name, f"has the element {wrong}, which is no {datatype}") from None
    return _swapped(numbers).tobytes()


def _pieces(values: Any) -> Iterator[list[Any]]:
    return (values[begin : begin + _PIECE] for begin in range(0, len(values), _PIECE))


def add_typed(contents: Any, tensor: Tensor) -> None:
    """Adds a tensor's elements to the typed field of its datatype, which must have one."""
    field = getattr(contents, FIELDS[tensor.datatype])
    if tensor.datatype in ("BYTES", "BOOL"):
        elements: Any = tensor.data
    else:
        numbers = array.array(DATATYPES[tensor.datatype].format)
        numbers.frombytes(tensor.raw)
        elements = _swapped(numbers)
    for begin in range(0, len(elements), _PIECE):
        field.extend(elements[begin : begin + _PIECE])


def least_typed_size(tensor: Tensor) -> int:
    """Returns how many bytes of a message a tensor's elements take in their typed field, or more."""
    if tensor.datatype == "BYTES":
        return tensor.n_bytes - 2 * tensor.n_elements  # a tag and a length of a byte each, where raw has four
    return tensor.n_bytes if tensor.datatype in ("FP32", "FP64") else tensor.n_elements


def _swapped(numbers: array.array[Any]) -> array.array[Any]:
    """Turns numbers between this machine's order of bytes and little-endian."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


_MOST_INT64 = 2**63 - 1
_MOST_UINT64 = 2**64 - 1


def _read_parameters(parameters: Any) -> dict[str, Parameter]:
    """Returns the parameters of a message. Raises Refused for one without a value."""
    return {name: _value(name, parameters[name]) for name in parameters}


def _value(name: str, parameter: Any) -> Parameter:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise Refused(f"the parameter {name!r:.120} has no value", f"parameters.{name:.120}")
    value: Parameter = getattr(parameter, choice)
    return value


def _write_parameters(parameters: Any, values: Mapping[str, Parameter]) -> None:
    """Adds values to the parameters of a message. Raises HandlerFailed for one that fits no field."""
    for name, value in values.items():
        try:
            setattr(parameters[name], _field(value), value)
        except (ValueError, TypeError) as error:  # as of text that is no Unicode
            raise HandlerFailed(f"the parameter {name!a:.120} of the answer cannot be sent") from error


def _field(value: Parameter) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "uint64_param" if _MOST_INT64 < value <= _MOST_UINT64 else "int64_param"
    return "double_param" if isinstance(value, float) else "string_param"


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
    front, of_handler = split_parameters(_read_parameters(request.parameters))
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
        if has_typed(tensor):
            raise InvalidTensor(tensor.name, f"has both contents and {OBJECT_REF}")
        own = _read_parameters(tensor.parameters)
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
    return tuple(_tensor(tensor, raw_from_typed(tensor)) for tensor in inputs)


def _raw_inputs(raw_contents: RawContents, inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    if len(raw_contents) != len(inputs):
        raise Refused(
            f"raw_input_contents has {len(raw_contents)} entries for {len(inputs)} inputs", "raw_input_contents"
        )
    for tensor in inputs:
        if has_typed(tensor):
            raise InvalidTensor(tensor.name, "has typed contents, where raw_input_contents are there as well")
    return tuple(_tensor(tensor, raw) for tensor, raw in zip(inputs, raw_contents, strict=True))


def _tensor(tensor: Any, raw: bytes | memoryview) -> Tensor:
    own = _read_parameters(tensor.parameters)
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw=raw, parameters=own)


FINAL = "triton_final_response"


def goes_raw(tensors: Sequence[Tensor], *, is_raw: bool) -> bool:
    """Returns whether these outputs travel raw, as they do as well if one of their datatypes has no typed field."""
    return is_raw or any(tensor.datatype not in FIELDS for tensor in tensors)


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
            add_typed(output.contents, tensor)
    return message


def _head(call_id: str, answer: AskOutputs) -> Any:
    message = protocol.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=call_id)
    _write_parameters(message.parameters, answer.parameters)
    return message


def _add_output(message: Any, tensor: Tensor) -> Any:
    """Adds a tensor without its content."""
    output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    _write_parameters(output.parameters, tensor.parameters)
    return output


def least_size(tensors: Sequence[Tensor], *, is_raw: bool) -> int:
    """Returns how many bytes the message of these outputs takes, or more."""
    if goes_raw(tensors, is_raw=is_raw):
        return sum(tensor.n_bytes for tensor in tensors)
    return sum(least_typed_size(tensor) for tensor in tensors)


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
