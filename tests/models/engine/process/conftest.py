"""Engines in processes of their own, and a run directory for each test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from corosrv.contracts.settings import ModelSettings
from corosrv.models.engine.process.remote import RemoteEngine
from tests.support.engines import FAST
from tests.support.waiting import wait_until as until

OpenFront = Callable[..., RemoteEngine]


@pytest.fixture
def run_dir() -> Iterator[str]:
    """A short path: that of a socket must fit."""
    folder = tempfile.mkdtemp(prefix="corosrv-")
    yield folder
    shutil.rmtree(folder)


def settings_of(**chosen: Any) -> ModelSettings:
    return ModelSettings(**{"model": FAST, "slots": 4, "ctx": 512, "threads": 1, **chosen})


def pid_of(front: RemoteEngine) -> int:
    """The engine's process."""
    assert front.pid is not None
    return front.pid


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def open_front(run_dir: str) -> Iterator[OpenFront]:
    """Opens engines as fronts do; closes them, and ends their processes."""
    fronts: list[RemoteEngine] = []
    pids: set[int] = set()

    def open_front(**chosen: Any) -> RemoteEngine:
        front = RemoteEngine(settings_of(**chosen), run_dir)
        fronts.append(front)
        front.open()
        pids.add(pid_of(front))
        return front

    yield open_front
    for front in fronts:
        if front.pid is not None:
            pids.add(front.pid)
        front.close()
    for pid in pids:
        if not has_ended(pid):
            os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: has_ended(pid))
