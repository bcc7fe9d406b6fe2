"""Joins the lane of one slot with what its running call asks over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corosrv.workers.worker.app.signal import EndSignal
from corosrv.workers.worker.child.apps.app_lane import AppLane
from corosrv.workers.worker.child.apps.lane_asks import LaneAsks


@dataclass(frozen=True)
class AppSlot:
    """Belongs to the runner that serves the lane. Slots are numbered as their lanes."""

    lane: AppLane
    asks: LaneAsks
    make_caller: Callable[[EndSignal, str], Any]  # of the request with this id; its Caller or AsyncCaller

    @property
    def id(self) -> int:
        return self.lane.id
