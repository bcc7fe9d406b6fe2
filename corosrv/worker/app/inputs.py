"""Makes tensors of Python's values, as inputs of the calls that a handler makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corosrv.errors import InvalidTensor
from corosrv.tensors import Tensor
from corosrv.tensors.arrays import is_array


def tensor_of(name: str, content: Any) -> Tensor:
    """Returns an input: a Tensor by this name, or what an array or a flat list holds. Raises InvalidTensor.

    Integers of a list become INT64, other numbers FP64, texts and bytes BYTES.
    """
    if isinstance(content, Tensor):
        return Tensor.from_checked(name, content.datatype, content.shape, content.raw, content.parameters)
    if is_array(content):
        return Tensor(name, _datatype_of_array(name, content), [int(size) for size in content.shape], content)
    if not isinstance(content, (list, tuple)):
        raise InvalidTensor(name, f"needs a Tensor, an array or a flat list, and no {type(content).__name__}")
    return Tensor(name, _datatype_of_list(name, content), [len(content)], content)


def _datatype_of_list(name: str, content: Sequence[Any]) -> str:
    kinds = {type(element) for element in content}
    if kinds and kinds <= {bool}:
        return "BOOL"
    if kinds and kinds <= {int}:
        return "INT64"
    if kinds and kinds <= {int, float}:
        return "FP64"
    if kinds and kinds <= {str, bytes}:
        return "BYTES"
    raise InvalidTensor(name, "is a list that does not tell its datatype: pass a Tensor")


def _datatype_of_array(name: str, array: Any) -> str:
    kind, n_bits = array.dtype.kind, 8 * array.dtype.itemsize
    if kind in "iu":
        return f"{'U' if kind == 'u' else ''}INT{n_bits}"
    if kind == "f" and n_bits <= 64:
        return f"FP{n_bits}"
    if kind in "bOSU":
        return "BOOL" if kind == "b" else "BYTES"
    raise InvalidTensor(name, f"is an array of {array.dtype.name}, which is no datatype of a tensor")
