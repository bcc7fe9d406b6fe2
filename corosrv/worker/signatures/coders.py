"""Cog's coders: how values of an author's own types become JSON objects, and come of such.

They are known to cog's registry alone, so without cog there are none.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any, Protocol


class Coder(Protocol):
    def encode(self, value: Any) -> Any:
        """The JSON object of a value."""

    def decode(self, value: Any) -> Any:
        """The value of a JSON object."""


def register(module: ModuleType) -> None:
    """All that a predictor's module defines or imports, also within the modules that it imports."""
    base = _base()
    if base is None:
        return
    for place in (module, *(value for value in vars(module).values() if inspect.ismodule(value))):
        for found in tuple(vars(place).values()):
            if isinstance(found, type) and issubclass(found, base) and found is not base:
                base.register(found)


def coder_of(kind: Any) -> Coder | None:
    """Of values of this type, or of what is annotated so."""
    base = _base()
    return None if base is None else base.lookup(kind)


def _base() -> Any:
    """Cog's class Coder, with its registry, if any predictor has imported it."""
    return getattr(sys.modules.get("cog.coder"), "Coder", None)
