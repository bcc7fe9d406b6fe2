"""Converts a tensor's `data` in JSON, flat or nested, to its raw form and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from corosrv.base.errors import InvalidTensor, Refused
from corosrv.dialects.kserve.long_data import LongData
from corosrv.formats.tensors import Tensor, elements

BINARY_ONLY = ("FP16", "BF16")  # JSON has no elements for them


def tensor(name: str, datatype: str, shape: Sequence[int], data: object, parameters: Any = None) -> Tensor:
    """Makes a tensor of decoded JSON, or of an array that is yet to be decoded; gives way in the latter.

    Raises InvalidTensor for elements of a wrong type, range or count, and for nested lists that are not as the shape
    says.
    """
    if datatype in BINARY_ONLY:
        raise InvalidTensor(
            name, f"has the datatype {datatype}, which JSON has no elements for: send it as binary data"
        )
    if isinstance(data, LongData):
        pieces = data.decode()
    elif isinstance(data, list):
        pieces = iter([(data, 0)])
    elif not shape and not isinstance(data, (str, dict)):
        pieces = iter([([data], 0)])
    else:
        raise InvalidTensor(name, "has data that are no array")
    checked = Tensor.from_checked(name, datatype, shape, b"", parameters)
    checked.raw = _pack(checked, pieces)
    return checked


def _pack(empty_tensor: Tensor, pieces: Iterable[tuple[list[Any], int]]) -> bytes:
    name, datatype, shape = empty_tensor.name, empty_tensor.datatype, empty_tensor.shape
    rows: _NestedRows | None = None
    packed: list[bytes] = []
    n_found = 0
    for values, n_open in pieces:
        if not packed and values and isinstance(values[0], list):
            rows = _NestedRows(name, shape)
        members = values if rows is None else rows.flatten(values, n_open)
        n_found += len(members)
        if n_found > empty_tensor.n_elements:
            raise InvalidTensor(
                name, f"has more elements than the {empty_tensor.n_elements} of the shape {list(shape)}"
            )
        packed.append(elements.pack(name, datatype, members))
    if n_found != empty_tensor.n_elements:
        raise InvalidTensor(
            name, f"has {n_found} elements, where the shape {list(shape)} needs {empty_tensor.n_elements}"
        )
    return packed[0] if len(packed) == 1 else b"".join(packed)


def flat(data: list[Any]) -> list[Any]:
    """Returns the elements of lists that may be nested. Raises Refused where they are nested too deep."""
    for _ in range(elements.MAX_DIMENSIONS):
        if not any(isinstance(member, list) for member in data):
            return data
        data = [element for member in data for element in (member if isinstance(member, list) else [member])]
    raise Refused(f"data are nested deeper than {elements.MAX_DIMENSIONS} levels")


class _NestedRows:
    """Flattens nested lists that come in pieces, and checks that each has as many members as the shape says."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name = name
        self._shape = shape
        self._n_members = [0] * (len(shape) + 1)  # of the list that is open at each depth, from 1 on

    def flatten(self, values: list[Any], n_open: int) -> list[Any]:
        """Returns the elements of a piece, whose last `n_open` lists (the outermost first) go on in the next one."""
        members: list[Any] = []
        self._walk(values, 1, n_open, members)
        return members

    def _walk(self, values: list[Any], depth: int, n_open: int, members: list[Any]) -> None:
        if depth > len(self._shape):
            raise InvalidTensor(self._name, f"has nested lists, which the shape {list(self._shape)} has no place for")
        if depth == len(self._shape):
            members += values
            self._n_members[depth] += len(values)
        else:
            last = len(values) - 1
            for number, value in enumerate(values):
                if not isinstance(value, list):
                    raise InvalidTensor(self._name, "has lists and elements side by side")
                self._walk(value, depth + 1, n_open if number == last else 0, members)
        if depth > n_open:
            self._close(depth)

    def _close(self, depth: int) -> None:
        if self._n_members[depth] != self._shape[depth - 1]:
            raise InvalidTensor(self._name, f"has nested lists that are not of the shape {list(self._shape)}")
        self._n_members[depth] = 0
        self._n_members[depth - 1] += 1
