"""Answers of calls as ModelInferResponse and ModelStreamInferResponse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corosrv.dialects.kserve.grpc import contents, parameters, protocol, raw_contents
from corosrv.formats.tensors import Tensor
from corosrv.workers.wire.calls import AskEnd, AskOutputs

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
    return raw_contents.with_outputs(message.SerializeToString(), [tensor.raw for tensor in tensors])


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
    parameters.write(message.parameters, answer.parameters)
    return message


def _add_output(message: Any, tensor: Tensor) -> Any:
    """Adds a tensor without its content."""
    output = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    parameters.write(output.parameters, tensor.parameters)
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
