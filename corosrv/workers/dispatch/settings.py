"""Defines the settings of a dispatcher."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.base.errors import SettingsError
from corosrv.contracts.idempotency import LIFETIME, MAX_BYTES


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Bounds the queues of one front. Times are in seconds."""

    max_calls: int = 4096  # that wait, over all keys; how many may wait for one key is its handler's to say
    max_bytes: int = 256 << 20  # of their tensors
    calls_per_caller: int = 0  # that wait and run, of one API key, without those that handlers make; 0: no limit
    longest_start: float = 30.0  # that a call waits for the first worker of its handler
    idempotency_bytes: int = MAX_BYTES  # of answers that are kept under idempotency keys; 0: none are
    idempotency_s: float = LIFETIME  # for which an answer is kept
    n_callers: int = 1  # among whom these bytes are divided
    logs_json: bool = False

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_bytes", "calls_per_caller", "idempotency_bytes"):
            if getattr(self, name) < 0:
                raise SettingsError(f"dispatch.{name} must be at least 0, not {getattr(self, name)}")
