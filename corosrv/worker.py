"""The names that authors import: `from corosrv.worker import BasePredictor, Input, Path` for predictors, and
`from corosrv.worker import App, Worker, Tensor` for handlers.

Each name is imported from its module at its first use: the child that runs user code has to start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corosrv.base import import_late

if TYPE_CHECKING:
    from corosrv.base.errors import AppError, Conflict, HandlerFailed, NotFound, Unavailable, WorkerLost
    from corosrv.base.errors import CallCancelled as Cancelled
    from corosrv.base.errors import CallRefused as InvalidInput
    from corosrv.base.errors import DeadlinePassed as DeadlineExceeded
    from corosrv.contracts.jobs.infer import ObjRef
    from corosrv.formats.tensors import Tensor, TensorSpec
    from corosrv.workers.worker.app.app import App
    from corosrv.workers.worker.app.context import AsyncContext, Context
    from corosrv.workers.worker.app.messages import ModelInferRequest, ModelInferResponse
    from corosrv.workers.worker.app.pools import Worker
    from corosrv.workers.worker.predictor import (
        AsyncConcatenateIterator,
        BaseModel,
        BasePredictor,
        BaseRunner,
        CancelationException,
        ConcatenateIterator,
        File,
        Input,
        Opaque,
        Path,
        Secret,
        concurrent,
        streaming,
    )
    from corosrv.workers.worker.scope import current_scope

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

__getattr__ = import_late(
    __name__,
    {
        "corosrv.base.errors": "AppError Cancelled Conflict DeadlineExceeded HandlerFailed InvalidInput NotFound "
        "Unavailable WorkerLost",
        "corosrv.contracts.jobs.infer": "ObjRef",
        "corosrv.formats.tensors": "Tensor TensorSpec",
        "corosrv.workers.worker.app.app": "App",
        "corosrv.workers.worker.app.pools": "Worker",
        "corosrv.workers.worker.app.context": "AsyncContext Context",
        "corosrv.workers.worker.app.messages": "ModelInferRequest ModelInferResponse",
        "corosrv.workers.worker.predictor": "AsyncConcatenateIterator BaseModel BasePredictor BaseRunner "
        "CancelationException ConcatenateIterator File Input Opaque Path Secret concurrent streaming",
        "corosrv.workers.worker.scope": "current_scope",
    },
    # What authors raise has other names in the server, where such an error may have other causes as well.
    {"Cancelled": "CallCancelled", "DeadlineExceeded": "DeadlinePassed", "InvalidInput": "CallRefused"},
)
