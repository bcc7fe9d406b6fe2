"""Writes and reads the values of objects as their content type says. Never pickles."""

from __future__ import annotations

from typing import Any

import msgspec

from corosrv.base.errors import InvalidTensor, OutputFailed
from corosrv.formats.tensors import Tensor
from corosrv.formats.tensors.arrays import is_array
from corosrv.workers.worker.app.inputs import tensor_of

BINARY = "application/octet-stream"
JSON = "application/json"
TENSOR = "application/x-corosrv-tensor"  # with its datatype and shape as parameters
_NAME = "object"  # of a tensor that was read


def write_value(value: Any, content_type: str | None) -> tuple[str, bytes | memoryview]:
    """Returns the content type and the content of bytes, of a tensor or an array, or of what JSON can hold.

    `content_type`: for bytes alone. Raises OutputFailed.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return content_type or BINARY, value if isinstance(value, bytes) else memoryview(value).cast("B")
    if content_type is not None:
        raise OutputFailed(f"an object of the type {content_type!r} needs bytes, and no {type(value).__name__}")
    try:
        if isinstance(value, Tensor) or is_array(value):
            tensor = tensor_of(_NAME, value)
            shape = "x".join(map(str, tensor.shape))
            return f"{TENSOR}; datatype={tensor.datatype}; shape={shape}", tensor.raw
        return JSON, msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, InvalidTensor) as error:
        raise OutputFailed(f"no object can hold this {type(value).__name__}: {error}") from error


def read_value(content_type: str, content: bytes | memoryview) -> Any:
    """Returns what write_value() wrote; bytes for every other content type. A tensor shares the memory of `content`.

    Raises InvalidTensor and ValueError for a content that is not of its type.
    """
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if kind == JSON:
        return msgspec.json.decode(content)
    if kind != TENSOR:
        return bytes(content)
    values = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
    shape = [int(size) for size in values.get("shape", "").split("x") if size]
    return Tensor(_NAME, values.get("datatype", ""), shape, raw=content)


def input_of(name: str, value: Any) -> Tensor:
    """Returns the value of an object as an input of a call: bytes become one element of BYTES. Raises InvalidTensor."""
    return tensor_of(name, [value] if isinstance(value, bytes) else value)
