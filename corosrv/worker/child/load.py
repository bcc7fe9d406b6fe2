"""Loads the predictor that FILE.py:NAME or MODULE:NAME names."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from corosrv.errors import LoadError
from corosrv.worker.signatures import coders
from corosrv.worker.signatures import signature as signatures
from corosrv.worker.signatures.signature import Signature

_DEFAULT_NAMES = ("Runner", "Predictor")  # tried where none is given


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor that can be set up and called. Hooks that the author did not write are None."""

    signature: Signature
    call: Callable[..., Any]
    setup: Callable[..., Any] | None = None
    healthcheck: Callable[[], Any] | None = None


def load(reference: str) -> Predictor:
    """Imports and constructs the predictor. Raises LoadError, SignatureError, and what the author's code raises."""
    target = _find(reference)
    signature = signatures.read(target)
    if not inspect.isclass(target):
        return Predictor(signature, target)
    instance = target()
    return Predictor(
        signature,
        getattr(instance, signature.method),
        setup=getattr(instance, "setup", None),
        healthcheck=getattr(instance, "healthcheck", None),
    )


def _find(reference: str) -> Any:
    place, _, name = reference.rpartition(":") if ":" in reference else (reference, "", "")
    module = _from_file(place) if place.endswith(".py") else _from_name(place)
    coders.register(module)
    if not name:
        name = next((candidate for candidate in _DEFAULT_NAMES if hasattr(module, candidate)), "")
        if not name:
            raise LoadError(
                f"{place} has no {' or '.join(_DEFAULT_NAMES)}: name the class or function, as {place}:NAME"
            )
    try:
        target = getattr(module, name)
    except AttributeError:
        raise LoadError(f"{place} has no class or function {name!r}") from None
    if not callable(target):
        raise LoadError(f"{name!r} in {place} is a {type(target).__name__}, neither a class nor a function")
    return target


def _from_file(path: str) -> ModuleType:
    if not os.path.isfile(path):
        raise LoadError(f"there is no file {path} (looked in {os.getcwd()})")
    folder, file = os.path.split(os.path.abspath(path))
    # Its neighbours can be imported, as if it had been started as a program.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    stem = file.removesuffix(".py")
    # Under its own name, which pickle goes by, unless that is another module's.
    name = f"_predictor_{stem}" if stem in sys.modules or stem in sys.stdlib_module_names else stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "every .py file has a loader"
    assert spec.loader is not None, "every .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # of the package around it
        spec = None
    if spec is None:
        raise LoadError(f"there is no module {name!r}: a predictor is named as FILE.py:NAME or MODULE:NAME")
    return importlib.import_module(name)
