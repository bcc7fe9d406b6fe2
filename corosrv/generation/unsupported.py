"""Known parameters that are not offered: refused by name, so that nobody believes that one was honoured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from corosrv.errors import NotSupported

# Each with the values that ask for nothing.
Neutral = Mapping[str, tuple[Any, ...]]

EVERYWHERE: Neutral = {
    "n_indent": (0,),
}


def decoder(neutral: Neutral) -> msgspec.json.Decoder[Any]:
    """Decodes these fields only; the rest of a body is skipped."""
    return msgspec.json.Decoder(msgspec.defstruct("UnsupportedFields", [(name, Any, None) for name in neutral]))


def refuse(sent: msgspec.Struct, neutral: Neutral) -> None:
    """Raises NotSupported for the first field that asks for something."""
    for name, values in neutral.items():
        value = getattr(sent, name)
        # True == 1 in Python, and not here; 0.0 asks for as little as 0 does.
        if value is not None and not any(
            value == known and isinstance(value, bool) == isinstance(known, bool) for known in values
        ):
            raise NotSupported(f"{name} is not supported by this server yet", name, "unsupported_parameter")
