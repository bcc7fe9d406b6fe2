"""Predictors written for Cog, unchanged: its `cog` package asks a native one, `coglet`, for the prediction at hand."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import corosrv
from corosrv.workers.worker.predictor import CancelationException
from corosrv.workers.worker.scope import current_scope


def stand_in() -> None:
    """Answers in coglet's place from now on, if cog is installed. Without it, nobody finds a coglet here."""
    if importlib.util.find_spec("cog") is None:
        return
    coglet = ModuleType("coglet", "corosrv, in the place of Cog's own server")
    coglet.__dict__.update(
        __version__=corosrv.__version__,
        CancelationException=CancelationException,
        server=SimpleNamespace(active=True),
        _sdk=SimpleNamespace(current_scope=current_scope),
    )
    sys.modules["coglet"] = coglet
