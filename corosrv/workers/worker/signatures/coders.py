"""Cog's coders: how values of an author's own types are converted to JSON objects and back.

They are known to cog's registry alone, so without cog there are none.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any, Protocol


class Coder(Protocol):
    def encode(self, value: Any) -> Any:
        """Converts a value to a JSON object."""

    def decode(self, value: Any) -> Any:
        """Converts a JSON object to a value."""


def register(module: ModuleType) -> None:
    """Registers all coders that a predictor's module defines or imports, also those in modules that it imports."""
    base = _base()
    if base is None:
        return
    for place in (module, *(value for value in vars(module).values() if inspect.ismodule(value))):
        for member in tuple(vars(place).values()):
            if isinstance(member, type) and issubclass(member, base) and member is not base:
                base.register(member)


def coder_of(kind: Any) -> Coder | None:
    """Returns the coder for values of this type or annotation, or None."""
    base = _base()
    return None if base is None else base.lookup(kind)


def _base() -> Any:
    """Returns Cog's class Coder, which holds the registry, if the predictor has imported it."""
    return getattr(sys.modules.get("cog.coder"), "Coder", None)
