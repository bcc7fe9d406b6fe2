"""The names that a predictor's author imports: `from corosrv.worker import BasePredictor, Input, Path`.

Each name is imported from its module at its first use: the child that runs a predictor has to start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corosrv.worker.predictor import BasePredictor, BaseRunner, CancelationException, concurrent, streaming
    from corosrv.worker.scope import current_scope
    from corosrv.worker.types import (
        AsyncConcatenateIterator,
        BaseModel,
        ConcatenateIterator,
        File,
        Input,
        Opaque,
        Path,
        Secret,
    )

__all__ = [
    "AsyncConcatenateIterator",
    "BaseModel",
    "BasePredictor",
    "BaseRunner",
    "CancelationException",
    "ConcatenateIterator",
    "File",
    "Input",
    "Opaque",
    "Path",
    "Secret",
    "concurrent",
    "current_scope",
    "streaming",
]

_HOMES = {
    "BasePredictor": "predictor",
    "BaseRunner": "predictor",
    "CancelationException": "predictor",
    "concurrent": "predictor",
    "streaming": "predictor",
    "current_scope": "scope",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'types')}"), name)
    globals()[name] = value
    return value
