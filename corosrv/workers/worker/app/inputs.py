"""Makes tensors of Python's values: inputs of the calls that a handler makes, and lists of what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor
from corosrv.formats.tensors import Tensor
from corosrv.formats.tensors.arrays import is_array


def tensor_of(name: str, content: Any) -> Tensor:
    """Returns an input: a Tensor by this name, or what an array or a list holds. Raises InvalidTensor.

    Integers of a list become INT64, other numbers FP64, texts and bytes BYTES. Lists may be nested, not ragged.
    """
    if isinstance(content, Tensor):
        return Tensor.from_checked(name, content.datatype, content.shape, content.raw, content.parameters)
    if is_array(content):
        return Tensor(name, _datatype_of_array(name, content), [int(size) for size in content.shape], content)
    if not isinstance(content, (list, tuple)):
        raise InvalidTensor(name, f"needs a Tensor, an array or a list, and no {type(content).__name__}")
    shape, elements = flatten(name, content)
    return Tensor(name, _datatype_of_list(name, elements), shape, elements)


def flatten(name: str, content: Sequence[Any]) -> tuple[list[int], Sequence[Any]]:
    """Returns the shape and the elements of a list, which may be nested. Raises InvalidTensor for a ragged one."""
    shape = [len(content)]
    while any(issubclass(kind, (list, tuple)) for kind in set(map(type, content))):
        if not all(isinstance(member, (list, tuple)) for member in content):
            raise InvalidTensor(name, "has lists and elements side by side")
        sizes = {len(member) for member in content}
        if len(sizes) > 1:
            raise InvalidTensor(name, f"is ragged: it has lists of {min(sizes)} and of {max(sizes)} side by side")
        shape += sizes
        content = [element for member in content for element in member]
    return shape, content


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
