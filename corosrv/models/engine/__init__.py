"""The engine: a native decode loop, and readers that wait on eventfds through gevent's hub.

Each name is fetched from its module when it is first asked for: the child that tries a chat template has to start fast,
and needs neither gevent nor libllama.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from corosrv.base import import_late

if TYPE_CHECKING:
    from corosrv.contracts.jobs import Chunk
    from corosrv.models.engine.engine import Engine
    from corosrv.models.engine.reader import Reader

__all__ = ["Chunk", "Engine", "Reader"]

__getattr__ = import_late(
    __name__,
    {
        "corosrv.contracts.jobs": "Chunk",
        "corosrv.models.engine.engine": "Engine",
        "corosrv.models.engine.reader": "Reader",
    },
)
