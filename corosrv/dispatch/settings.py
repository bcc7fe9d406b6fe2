"""The settings of a dispatcher."""

from __future__ import annotations

from dataclasses import dataclass

from corosrv.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Bounds the queues of one front. Times are in seconds."""

    max_calls: int = 4096  # that wait, over all keys; how many may wait for one key is its handler's to say
    max_bytes: int = 256 << 20  # of their tensors
    longest_start: float = 30.0  # that a call waits for the first worker of its handler
    logs_json: bool = False

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_bytes"):
            if getattr(self, name) < 0:
                raise SettingsError(f"dispatch.{name} must be at least 0, not {getattr(self, name)}")
