"""Bodies of v2 requests, made for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from corosrv.formats.tensors import Tensor


def json_input(tensor: Tensor, data: Any = None) -> dict[str, Any]:
    """Describes an input with its data in JSON: flat, unless `data` is handed in."""
    elements = [element.decode() if isinstance(element, bytes) else element for element in tensor.data]
    return {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": list(tensor.shape),
        "data": elements if data is None else data,
    }


def binary_body(tensors: Sequence[Tensor], **members: Any) -> tuple[bytes, dict[str, str]]:
    """Returns a body with all tensors in the binary tail, and the header that says where it begins."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {"binary_data_size": tensor.n_bytes},
        }
        for tensor in tensors
    ]
    text = json.dumps({"inputs": inputs, **members}).encode()
    body = b"".join([text, *(bytes(tensor.raw) for tensor in tensors)])
    return body, {"Inference-Header-Content-Length": str(len(text))}


def nested(elements: Sequence[Any], shape: Sequence[int]) -> Any:
    """Nests a flat list as the shape says."""
    if len(shape) <= 1:
        return list(elements)
    size = len(elements) // shape[0] if shape[0] else 0
    return [nested(elements[at * size : (at + 1) * size], shape[1:]) for at in range(shape[0])]
