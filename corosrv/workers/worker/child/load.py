"""Imports the author's module that FILE.py:NAME or MODULE:NAME names, and constructs its predictor."""

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

from corosrv.base.errors import LoadError
from corosrv.workers.worker.signatures import shapes
from corosrv.workers.worker.signatures import signature as signatures
from corosrv.workers.worker.signatures.signature import Signature


def module_from_file(path: str) -> ModuleType:
    """Imports a file under its own name. Raises LoadError if it is not there, and what its code raises."""
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


def module_from_name(name: str, advice: str, directory: str = "") -> ModuleType:
    """Imports a module, which may lie in `directory` (empty: the working one).

    Raises LoadError, which ends with `advice`, if there is none, and what its code raises.
    """
    directory = os.path.abspath(directory)
    if directory not in sys.path and not (directory == os.getcwd() and "" in sys.path):
        sys.path.insert(0, directory)
    try:
        spec = importlib.util.find_spec(name)
    except ImportError as error:
        if not f"{name}.".startswith(f"{error.name}."):  # the package is there, and lacks something itself
            raise
        spec = None
    except ValueError:
        spec = None
    if spec is None:
        raise LoadError(f"there is no module {name!r}: {advice}")
    return importlib.import_module(name)


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
    if place.endswith(".py"):
        module = module_from_file(place)
    else:
        module = module_from_name(place, "a predictor is named as FILE.py:NAME or MODULE:NAME")
    shapes.register(module)
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
