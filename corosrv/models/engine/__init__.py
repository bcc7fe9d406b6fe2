"""The engine: a native decode loop, and readers that wait on eventfds through gevent's hub.

Each name is fetched from its module when it is first asked for: the child that tries a chat template has to start fast,
and needs neither gevent nor libllama.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corosrv.contracts.jobs import Chunk
    from corosrv.models.engine.engine import Engine
    from corosrv.models.engine.reader import Reader

__all__ = ["Chunk", "Engine", "Reader"]

_HOMES = {
    "Chunk": "corosrv.contracts.jobs",
    "Engine": "corosrv.models.engine.engine",
    "Reader": "corosrv.models.engine.reader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
