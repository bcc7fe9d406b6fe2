"""The names that authors import: `from corosrv.worker import BasePredictor, Input, Path` for predictors, and
`from corosrv.worker import App, Worker, Tensor` for handlers.

Each name is imported from its module at its first use: the child that runs user code has to start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corosrv.errors import AppError, Conflict, HandlerFailed, WorkerLost
    from corosrv.jobs.objects import ObjRef
    from corosrv.tensors import Tensor, TensorSpec
    from corosrv.worker.app.app import App
    from corosrv.worker.app.base_worker import Worker
    from corosrv.worker.app.context import AsyncContext, Context
    from corosrv.worker.app.errors import Cancelled, DeadlineExceeded, InvalidInput, NotFound, Unavailable
    from corosrv.worker.app.messages import ModelInferRequest, ModelInferResponse
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
    "App",
    "AppError",
    "AsyncConcatenateIterator",
    "AsyncContext",
    "BaseModel",
    "BasePredictor",
    "BaseRunner",
    "CancelationException",
    "Cancelled",
    "ConcatenateIterator",
    "Conflict",
    "Context",
    "DeadlineExceeded",
    "File",
    "HandlerFailed",
    "Input",
    "InvalidInput",
    "ModelInferRequest",
    "ModelInferResponse",
    "NotFound",
    "ObjRef",
    "Opaque",
    "Path",
    "Secret",
    "Tensor",
    "TensorSpec",
    "Unavailable",
    "Worker",
    "WorkerLost",
    "concurrent",
    "current_scope",
    "streaming",
]

_MODULES = {
    "corosrv.errors": ("AppError", "Conflict", "HandlerFailed", "WorkerLost"),
    "corosrv.jobs.objects": ("ObjRef",),
    "corosrv.tensors": ("Tensor", "TensorSpec"),
    "corosrv.worker.app.app": ("App",),
    "corosrv.worker.app.base_worker": ("Worker",),
    "corosrv.worker.app.context": ("AsyncContext", "Context"),
    "corosrv.worker.app.errors": ("Cancelled", "DeadlineExceeded", "InvalidInput", "NotFound", "Unavailable"),
    "corosrv.worker.app.messages": ("ModelInferRequest", "ModelInferResponse"),
    "corosrv.worker.predictor": ("BasePredictor", "BaseRunner", "CancelationException", "concurrent", "streaming"),
    "corosrv.worker.scope": ("current_scope",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "corosrv.worker.types")), name)
    globals()[name] = value
    return value
