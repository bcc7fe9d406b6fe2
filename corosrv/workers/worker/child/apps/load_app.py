"""Loads the application that MODULE:NAME or FILE.py:NAME names."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from corosrv.base.errors import AppError, LoadError
from corosrv.workers.wire.calls import InitApp
from corosrv.workers.worker.app.app import App
from corosrv.workers.worker.app.pools import Pool
from corosrv.workers.worker.child.load import module_from_file, module_from_name

_ADVICE = "an application is named as MODULE:NAME, looked for in --app-dir, or as FILE.py:NAME"


def load_app(init: InitApp) -> App:
    """Imports the application. Raises LoadError, AppError, and what the author's code raises."""
    place, _, name = init.app_ref.rpartition(":") if ":" in init.app_ref else (init.app_ref, "", "app")
    module = _module(place, init.app_dir)
    try:
        target = getattr(module, name)
    except AttributeError:
        raise LoadError(f"{place} has no {name!r}: name the App, as {place}:NAME") from None
    app = _made_by(target, init.app_ref) if init.is_factory else target
    if not isinstance(app, App):
        raise LoadError(_no_app(init, app))
    if not app.pools():
        raise AppError(f"{init.app_ref} has no handlers: register some with @app.model, @app.capability or @app.worker")
    return app


def _module(place: str, app_dir: str) -> ModuleType:
    """Imports a module, or a file with its neighbours. Raises LoadError, and what the author's code raises."""
    if place.endswith(".py"):
        return module_from_file(os.path.join(app_dir, place))
    return module_from_name(place, _ADVICE, app_dir)


def _made_by(factory: Any, app_ref: str) -> Any:
    if not callable(factory):
        raise LoadError(
            f"{app_ref} is of type {type(factory).__name__} and no function that makes an App: drop --factory"
        )
    return factory()


def _no_app(init: InitApp, target: Any) -> str:
    kind = type(target).__name__
    if init.is_factory:
        return f"{init.app_ref} returned an object of type {kind} and no App"
    advice = ": say --factory if it makes one" if callable(target) else ""
    return f"{init.app_ref} is of type {kind} and no App{advice}"


def find_pool(app: App, name: str) -> Pool:
    """Returns the pool of this name. Raises LoadError."""
    for pool in app.pools():
        if pool.name == name:
            return pool
    raise LoadError(f"the application has no pool {name!r}")
