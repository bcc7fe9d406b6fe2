"""corosrv.app, whose workers come back at once, and whose permits are counted after every step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from corosrv import app
from corosrv.workers.dispatch.host import PermitPool
from corosrv.workers.worker.parent import predictor_process

MISCOUNTED = "permits do not add up"
predictor_process.LONGEST_PAUSE = 0.05  # all pauses but the first


def counted(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a PermitPool, behind which its numbers are looked at."""

    @wraps(step)
    def counting(pool: PermitPool, *arguments: Any) -> Any:
        result = step(pool, *arguments)
        if pool.available + pool.in_use + pool.poisoned + pool.retiring != pool.total:
            logging.getLogger("corosrv").critical("%s after %s: %s", MISCOUNTED, step.__name__, vars(pool))
        return result

    return counting


for name in ("add", "retire", "try_acquire", "poison", "end"):
    setattr(PermitPool, name, counted(getattr(PermitPool, name)))


def __getattr__(name: str) -> Any:
    return getattr(app, name)  # which starts what it serves when it is asked for
