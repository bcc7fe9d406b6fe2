"""Loads the application that MODULE:ATTRIBUTE names."""

from __future__ import annotations

from typing import Any

from corosrv.errors import AppError, LoadError
from corosrv.wire.calls import InitApp
from corosrv.worker.app.app import App
from corosrv.worker.app.pools import Pool
from corosrv.worker.child.modules import module_from_name

_ADVICE = "an application is named as MODULE:ATTRIBUTE, and looked for in --app-dir"


def load_app(init: InitApp) -> App:
    """Imports the application. Raises LoadError, AppError, and what the author's code raises."""
    module_name, _, attribute = init.app_ref.partition(":")
    attribute = attribute or "app"
    module = module_from_name(module_name, _ADVICE, init.app_dir)
    try:
        target = getattr(module, attribute)
    except AttributeError:
        raise LoadError(f"{module_name} has no {attribute!r}: name the App, as {module_name}:NAME") from None
    app = _made_by(target, init.app_ref) if init.is_factory else target
    if not isinstance(app, App):
        raise LoadError(_no_app(init, app))
    if not app.pools():
        raise AppError(f"{init.app_ref} has no handlers: register some with @app.model, @app.capability or @app.worker")
    return app


def _made_by(factory: Any, app_ref: str) -> Any:
    if not callable(factory):
        raise LoadError(f"{app_ref} is a {type(factory).__name__} and no function that makes an App: drop --factory")
    return factory()


def _no_app(init: InitApp, target: Any) -> str:
    kind = type(target).__name__
    if init.is_factory:
        return f"{init.app_ref} returned a {kind} and no App"
    advice = ": say --factory if it makes one" if callable(target) else ""
    return f"{init.app_ref} is a {kind} and no App{advice}"


def find_pool(app: App, name: str) -> Pool:
    """Returns the pool of this name. Raises LoadError."""
    for pool in app.pools():
        if pool.name == name:
            return pool
    raise LoadError(f"the application has no pool {name!r}")
