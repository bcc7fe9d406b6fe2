"""Lists the datatypes of KServe's v2 protocol.

Source: the Open Inference Protocol, "Tensor Data Types".
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Datatype:
    """Describes one datatype: how its elements are stored, and which numbers they may be."""

    name: str
    size: int  # bytes of an element; 0 for BYTES, whose elements have their length in front
    format: str = ""  # of the modules array and struct; empty where they have none
    least: int = 0  # of integers
    most: int = 0

    @property
    def is_integer(self) -> bool:
        return self.most > 0


def _integer(name: str, size: int, format: str) -> Datatype:
    bits = 8 * size
    if name.startswith("U"):
        return Datatype(name, size, format, 0, 2**bits - 1)
    return Datatype(name, size, format, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


DATATYPES: dict[str, Datatype] = {
    datatype.name: datatype
    for datatype in (
        Datatype("BOOL", 1, "?"),
        _integer("INT8", 1, "b"),
        _integer("INT16", 2, "h"),
        _integer("INT32", 4, "i"),
        _integer("INT64", 8, "q"),
        _integer("UINT8", 1, "B"),
        _integer("UINT16", 2, "H"),
        _integer("UINT32", 4, "I"),
        _integer("UINT64", 8, "Q"),
        Datatype("FP16", 2, "e"),
        Datatype("BF16", 2),
        Datatype("FP32", 4, "f"),
        Datatype("FP64", 8, "d"),
        Datatype("BYTES", 0),
    )
}
