"""Converts Python's values to tensors and back, as an annotation says. Needs neither numpy nor pydantic installed.

Numbers, truth values, texts and bytes, lists of them and arrays of numpy are tensors; everything else that JSON can
hold travels as its text, in an element of BYTES. `tensor_of` makes tensors of values without an annotation: inputs of
the calls that a handler makes, and what it gives back.
"""

from __future__ import annotations

import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Any, get_args, get_origin

import msgspec

from corosrv.base.errors import InvalidTensor, SignatureError
from corosrv.formats.tensors import DATATYPES, Tensor, TensorSpec
from corosrv.formats.tensors.tensor import is_array


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


Convert = Callable[[Any], Any]

_SCALARS: dict[Any, str] = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES", bytes: "BYTES"}
_LISTS = (list, abc.Sequence)
_NUMPY = {"bool": "BOOL", "bool_": "BOOL", "str_": "BYTES", "bytes_": "BYTES", "object_": "BYTES"}  # names of its types
_ARRAY_ADVICE = "as numpy.typing.NDArray[numpy.float32]"


@dataclass(frozen=True, slots=True)
class TypedValue:
    """Says how the values of an annotation travel.

    `read` makes a value of a tensor that is as the spec says; it raises ValueError for a content that does not fit.
    `write` makes of a value what `answer_of` takes as an output; it raises InvalidTensor and ValueError.
    """

    datatype: str
    shape: tuple[int, ...]
    read: Callable[[Tensor], Any]
    write: Callable[[str, Any], Any]
    any_rank: bool = False

    def spec(self, name: str, is_optional: bool) -> TensorSpec:
        return TensorSpec(name, self.datatype, self.shape, is_optional, self.any_rank)


@dataclass(frozen=True, slots=True)
class _ElementForm:
    """Says how one element of a tensor is converted; None: it stays as it is."""

    datatype: str
    decode: Convert | None = None
    encode: Convert | None = None


def typed_value(annotation: Any) -> TypedValue:
    """Reads an annotation. Raises SignatureError for a type that no tensor can hold."""
    inner, is_checked = _without_marks(annotation)
    if (array := _array(inner)) is not None:
        return array
    n_lists = 0
    while (get_origin(inner) in _LISTS) and get_args(inner)[0] is not Any:
        (inner,) = get_args(inner)
        n_lists += 1
    element = _element(inner)
    read = _read_list(element) if n_lists else _read_one(element)
    if is_checked:
        read = _check(read, annotation)
    shape = (-1,) * n_lists or (1,)
    return TypedValue(element.datatype, shape, read, _write_list(element, n_lists) if n_lists else _write_one(element))


def _without_marks(annotation: Any) -> tuple[Any, bool]:
    """Returns what Annotated is of, and whether msgspec.Meta limits it. Raises SignatureError for other marks."""
    while isinstance(annotation, typing.NewType):
        annotation = annotation.__supertype__
    if get_origin(annotation) is not typing.Annotated:
        return annotation, False
    inner, *marks = get_args(annotation)
    for mark in marks:
        if not isinstance(mark, (msgspec.Meta, str)):
            raise SignatureError(
                f"Annotated has {mark!r:.80}, which has no meaning here: give limits as msgspec.Meta(...)"
            )
    return inner, any(isinstance(mark, msgspec.Meta) for mark in marks)


def _check(read: Callable[[Tensor], Any], annotation: Any) -> Callable[[Tensor], Any]:
    return lambda tensor: msgspec.convert(read(tensor), annotation)


# Elements.


def _element(annotation: Any) -> _ElementForm:
    inner, is_checked = _without_marks(annotation)
    if is_checked:
        return _checked_element(_element(inner), annotation)
    if inner is str:
        return _ElementForm("BYTES", bytes.decode)
    if inner in _SCALARS:
        return _ElementForm(_SCALARS[inner])
    if (datatype := _numpy_datatype(inner)) not in (None, "BYTES"):
        return _ElementForm(datatype, inner)
    values = _listed_values(inner)
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and (kind := kinds.pop()) in (int, str, bool):
        return _checked_element(_element(kind), inner)
    return _json_element(inner)


def _listed_values(annotation: Any) -> Sequence[Any]:
    """Returns the values of a Literal or of an enum; none of other types."""
    if get_origin(annotation) is typing.Literal:
        return get_args(annotation)
    is_enum = isinstance(annotation, type) and issubclass(annotation, Enum)
    return [member.value for member in annotation] if is_enum else ()


def _checked_element(element: _ElementForm, annotation: Any) -> _ElementForm:
    decode = element.decode or (lambda value: value)
    return _ElementForm(element.datatype, lambda value: msgspec.convert(decode(value), annotation), msgspec.to_builtins)


def _json_element(annotation: Any) -> _ElementForm:
    try:
        strange = next(_strange_types(msgspec.inspect.type_info(annotation)), None)
        decoder = msgspec.json.Decoder(annotation, dec_hook=_model)
    except Exception as error:  # of annotations that are none, or of an author's class that cannot be looked into
        raise SignatureError(f"{_name_of(annotation)} cannot be read: {error}") from error
    if strange is not None:
        raise SignatureError(f"no tensor and no JSON holds a {_name_of(strange)}")
    record = _record_class(annotation)

    def encode(value: Any) -> bytes:
        if not isinstance(value, record):
            raise ValueError(f"is a {type(value).__name__} and no {_name_of(annotation)}")
        return msgspec.json.encode(value, enc_hook=_encode_foreign)

    return _ElementForm("BYTES", decoder.decode, encode)


def _record_class(annotation: Any) -> type:
    """Returns the class that all values of an annotation have; `object` where they have none in common."""
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind is types.UnionType:
        return object
    return dict if hasattr(kind, "__required_keys__") else kind


def _strange_types(info: Any, ancestors: Sequence[type] = ()) -> Iterator[type]:
    """Yields the types within a type that neither msgspec nor pydantic's models convert."""
    if isinstance(info, (tuple, list)):
        for member in info:
            yield from _strange_types(member, ancestors)
    if not isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)):
        return
    kind = getattr(info, "cls", None)
    is_of_pydantic = isinstance(info, msgspec.inspect.CustomType) or hasattr(kind, "__pydantic_validator__")
    if kind is not None and is_of_pydantic:
        if not hasattr(kind, "model_validate_json"):
            yield kind
    elif not any(kind is ancestor for ancestor in ancestors):
        for name in info.__struct_fields__:
            yield from _strange_types(getattr(info, name), ancestors if kind is None else (*ancestors, kind))


def _model(kind: Any, value: Any) -> Any:
    """Makes a model of pydantic within JSON. Raises ValueError, in one line."""
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        faults = error.errors() if hasattr(error, "errors") else [{"loc": (), "msg": str(error)}]
        words = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".removeprefix(": ") for fault in faults]
        raise ValueError("; ".join(words)) from None


def _encode_foreign(value: Any) -> Any:
    """Returns what msgspec can encode of a model, or of a number or an array of numpy."""
    if hasattr(value, "model_dump_json"):
        return msgspec.Raw(value.model_dump_json().encode())
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(f"holds a {type(value).__name__}, which JSON has no form for")


# Tensors of elements.


def _read_one(element: _ElementForm) -> Callable[[Tensor], Any]:
    decode = element.decode
    return lambda tensor: tensor.data[0] if decode is None else decode(tensor.data[0])


def _read_list(element: _ElementForm) -> Callable[[Tensor], Any]:
    def read(tensor: Tensor) -> list[Any]:
        if not tensor.n_elements:  # however many empty lists the shape makes of it
            return []
        values = list(tensor.data) if element.decode is None else list(map(element.decode, tensor.data))
        for axis in range(len(tensor.shape) - 1, 0, -1):
            size = tensor.shape[axis]
            values = [values[at * size : (at + 1) * size] for at in range(prod(tensor.shape[:axis]))]
        return values

    return read


def _write_one(element: _ElementForm) -> Callable[[str, Any], Any]:
    return lambda name, value: [value if element.encode is None else element.encode(value)]


def _write_list(element: _ElementForm, n_lists: int) -> Callable[[str, Any], Any]:
    def write(name: str, value: Any) -> Any:
        if is_array(value):
            return value
        if not isinstance(value, (list, tuple)):
            raise InvalidTensor(name, f"is a {type(value).__name__}: return a list")
        shape, elements = flatten(name, value)
        if not elements:
            shape += [0] * (n_lists - len(shape))
        return Tensor(
            name, element.datatype, shape, elements if element.encode is None else [*map(element.encode, elements)]
        )

    return write


# Arrays of numpy.


def _array(annotation: Any) -> TypedValue | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or (get_origin(annotation) or annotation) is not numpy.ndarray:
        return None
    arguments = get_args(annotation)
    dtypes = get_args(arguments[1]) if len(arguments) == 2 else ()
    datatype = _numpy_datatype(dtypes[0]) if dtypes else None
    if datatype is None:
        raise SignatureError(f"an array needs a type that tensors have, {_ARRAY_ADVICE}")
    shape = _array_shape(arguments[0])
    return TypedValue(
        datatype, shape or (-1,), Tensor.as_numpy, lambda name, value: numpy.asarray(value), shape is None
    )


def _array_shape(annotation: Any) -> tuple[int, ...] | None:
    """Returns the shape that an array's type tells, as `tuple[int, Literal[3]]` does; None if it may have any rank."""
    sizes = get_args(annotation)
    if not sizes or ... in sizes:
        return None
    return tuple(get_args(size)[0] if get_origin(size) is typing.Literal else -1 for size in sizes)


def _numpy_datatype(kind: Any) -> str | None:
    """Returns the datatype for a type of numpy's elements; None for other types."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(kind, type) or not issubclass(kind, numpy.generic):
        return None
    name = kind.__name__
    datatype = _NUMPY.get(name, name.upper().replace("FLOAT", "FP"))
    return datatype if datatype in DATATYPES else None


def _name_of(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind)
