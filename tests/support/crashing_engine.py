"""An engine's process that dies soon after it was given a prompt with POISON in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import gevent

from corosrv.models.engine import Engine, Reader
from corosrv.models.engine.binding import Task
from corosrv.models.engine.process import __main__ as program

POISON = 1_000_003 % 251  # a byte, and so a token of the synthetic model, that no text has
DELAY = 0.1  # seconds

run = Engine.run


def run_unless_poisoned(engine: Engine, tasks: Sequence[Task], caller: str, is_streamed: bool) -> Reader:
    if any(POISON in task.tokens for task in tasks):
        gevent.spawn_later(DELAY, os.abort)
    return run(engine, tasks, caller, is_streamed)


if __name__ == "__main__":
    Engine.run = run_unless_poisoned  # type: ignore[method-assign]
    program.main(sys.argv[1:])
