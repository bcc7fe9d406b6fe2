"""Contents and parameters of messages: between typed fields and tensors' raw form, and Python's values.

Typed fields are wider than some datatypes: an INT8 travels as int32. Numbers out of range are refused.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from corosrv.base.errors import HandlerFailed, InvalidTensor, Refused
from corosrv.formats.tensors import DATATYPES, Parameter, Tensor
from corosrv.formats.tensors import elements as shapes

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


def read(parameters: Any) -> dict[str, Parameter]:
    """Returns the parameters of a message. Raises Refused for one without a value."""
    return {name: _value(name, parameters[name]) for name in parameters}


def _value(name: str, parameter: Any) -> Parameter:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise Refused(f"the parameter {name!r:.120} has no value", f"parameters.{name:.120}")
    value: Parameter = getattr(parameter, choice)
    return value


def write(parameters: Any, values: Mapping[str, Parameter]) -> None:
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
