"""A cooperative model server: one OS thread, thousands of open streams.

What authors of applications and predictors import is here and in corosrv.worker: `from corosrv import App, Input`.
Nothing is imported before it is asked for: reading the version needs no Flask and no libllama.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from corosrv import worker
from corosrv.base import __version__ as __version__
from corosrv.base import import_late

if TYPE_CHECKING:
    from corosrv.contracts.jobs import Job, Text
    from corosrv.models.engine import Engine
    from corosrv.worker import *  # noqa: F403

__all__ = ["Engine", "Job", "Text", "__version__", "blueprint", "start"]
__all__ += worker.__all__

__getattr__ = import_late(
    __name__,
    {
        "corosrv.models.engine": "Engine",
        "corosrv.contracts.jobs": "Job Text",
        "corosrv.worker": " ".join(worker.__all__),
    },
)


def blueprint(**overrides: Any) -> Any:
    """Makes a Flask blueprint with everything in it; see corosrv.app.blueprint."""
    return import_module("corosrv.app").blueprint(**overrides)


def start(app: Any) -> None:
    """Begins to load the models of an app's corosrv blueprints at once; see corosrv.app.start."""
    import_module("corosrv.app").start(app)
