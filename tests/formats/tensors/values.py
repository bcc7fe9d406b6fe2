"""Values of every datatype, for tests and for properties."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from corosrv.formats.tensors import DATATYPES, Datatype

INTEGERS = [name for name, kind in DATATYPES.items() if kind.is_integer]
FLOATS = ["FP16", "BF16", "FP32", "FP64"]
FIXED = [name for name, kind in DATATYPES.items() if kind.size]

# One element that is an ordinary one, of each datatype.
ORDINARY: dict[str, Any] = (
    dict.fromkeys(INTEGERS, 7) | dict.fromkeys(FLOATS, 1.5) | {"BOOL": True, "BYTES": "grüße".encode()}
)


def elements_of(kind: Datatype) -> st.SearchStrategy[Any]:
    """Draws elements that survive a round trip: floats are drawn at the width of their datatype."""
    if kind.name == "BOOL":
        return st.booleans()
    if kind.name == "BYTES":
        return st.binary(max_size=40)
    if kind.is_integer:
        return st.integers(kind.least, kind.most)
    if kind.name == "BF16":
        return st.sampled_from([0.0, -0.0, 1.0, -2.5, 2.0**-133, 3.3895313892515355e38, float("inf")])
    return st.floats(width=8 * kind.size, allow_nan=False)
