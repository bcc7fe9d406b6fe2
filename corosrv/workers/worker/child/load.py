"""Loads the predictor that FILE.py:NAME or MODULE:NAME names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corosrv.base.errors import LoadError
from corosrv.workers.worker.child.modules import module_from_file, module_from_name
from corosrv.workers.worker.signatures import coders
from corosrv.workers.worker.signatures import signature as signatures
from corosrv.workers.worker.signatures.signature import Signature

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
