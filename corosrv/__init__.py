"""A cooperative model server: one OS thread, thousands of open streams."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "blueprint", "start"]


def blueprint(**overrides: Any) -> Any:
    """A Flask blueprint with everything in it; see corosrv.app.blueprint."""
    from corosrv.app import blueprint as make  # not at import: reading the version needs no Flask and no libllama

    return make(**overrides)


def start(app: Any) -> None:
    """Begins to load the models of an app's corosrv blueprints at once; see corosrv.app.start."""
    from corosrv.app import start as begin

    begin(app)
