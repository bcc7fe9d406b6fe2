"""Defines the bounds and time limits of transfers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from corosrv.base.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """Says how many transfers run at once, what they may take, and how long each of their steps may last.

    Sizes are rows, blocks or transfers; `staging_budget` is bytes, times are seconds.
    """

    max_blocks_per_round: int = 16
    max_active: int = 4
    max_queued: int = 64
    staging_budget: int = 64 << 20
    max_rows: int = 8191  # of one item
    open_timeout: float = 30.0  # without a description of the item
    round_timeout: float = 10.0  # from a grant to its rows
    drain_timeout: float = 5.0  # from a cancellation to its answer; the encoder is killed then
    deadline: float = 120.0  # from submission to the last row

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" and value <= 0:
                raise SettingsError(f"transfer.{field.name} must be more than 0 seconds, not {value}")
            if field.type == "int" and value < 1:
                raise SettingsError(f"transfer.{field.name} must be at least 1, not {value}")
