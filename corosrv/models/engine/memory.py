"""Fits a model into the memory that is there, before it is loaded, and tells when descriptors for readers run out."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from corosrv.base.errors import ModelFailed
from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine import libllama
from corosrv.models.engine.libllama import Device
from corosrv.models.fitting import gguf
from corosrv.models.fitting.model_file import flaw_of
from corosrv.models.fitting.plan import plan_memory, with_defaults, with_plan
from corosrv.models.fitting.room import Room, read_room

log = logging.getLogger("corosrv.engine")

_log = logging.getLogger("corosrv")

_INTERVAL = 60.0  # seconds between two lines


class DescriptorShortage:
    """Counts readers without a descriptor and writes a line about them, at most one a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._n = 0
        self._quiet_until = float("-inf")

    def count(self) -> None:
        self._n += 1
        if self._now() < self._quiet_until:
            return
        self._quiet_until = self._now() + _INTERVAL
        n, self._n = self._n, 0
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        _log.warning(
            "the limit of %d open files is too low: %d new readers got no file descriptor and are looked at every "
            "10 ms instead (raise it with ulimit -n)",
            limit,
            n,
        )


_UNKNOWN = Room(1 << 62, "not known")  # bytes, where nothing tells how much memory there is


class FittedModel(NamedTuple):
    """The settings of a model with nothing left open, and what copies of its weights may take."""

    settings: ModelSettings
    copy_bytes: int = 0
    words: str = ""  # what was chosen and why; empty where nothing had to be


def fit_model(settings: ModelSettings) -> FittedModel:
    """Chooses the slots and the context that are left open.

    Raises ModelFailed for those that do not fit, and for a file that is no model.
    """
    facts = None if settings.is_synthetic else gguf.read(settings.model)
    path = Path(settings.model)
    if facts is None and path.is_file() and (flaw := flaw_of(path)):
        raise ModelFailed(f"{path.name} {flaw}")
    if facts is None:  # of a file that is missing or broken, loading it tells why
        return FittedModel(with_defaults(settings))
    plan = plan_memory(settings, facts, read_room() or _UNKNOWN, gpu_room(settings, libllama.devices()))
    return FittedModel(with_plan(settings, plan), plan.copy_bytes, plan.reason)


def gpu_room(settings: ModelSettings, devices: Sequence[Device]) -> Room | None:
    """Returns the free memory of the GPUs that a model may use; None where there is none."""
    gpus = [device for device in devices if not device.is_processor]
    used = [device for device in gpus if not settings.devices or device.name in settings.devices]
    if not used:
        return None
    if settings.split_mode == "none":
        used = used[settings.main_gpu : settings.main_gpu + 1] or used[:1]
    names = ", ".join(device.name for device in used)
    return Room(sum(device.free for device in used), f"free on {names}")
