"""A server that has nothing to do sleeps."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.serve.server import SERVE, Process, Server, Servers
from tests.serve.wire import chat
from tests.support.waiting import eventually

SECONDS = 3.0


def wake_ups(pid: int) -> dict[str, int]:
    """How often each thread of a process has gone to sleep by itself so far."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        counted = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)
        assert counted
        found[(task / "comm").read_text().strip()] = int(counted.group(1))
    return found


def decode_thread_sleeps(pid: int) -> bool:
    """Whether the decode thread has gone to sleep, which the gauges cannot say: its last step ends after they are 0."""
    (state,) = [
        (task / "stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().strip() == "corosrv-decode"
    ]
    return state == "S"


@pytest.fixture
def served(start: Servers) -> Server:
    """A server that had something to do, and has nothing any more."""
    server = start.start(*SERVE)
    with server.connect() as connection:
        assert connection.post(chat(max_tokens=5, stream=True)).body.endswith(b"data: [DONE]\n\n")
    server.wait_idle()
    eventually(lambda: decode_thread_sleeps(server.worker.pid), what="the decode thread still runs")
    return server


def test_nothing_wakes_an_idle_server_but_gunicorn_s_heartbeat(served: Server) -> None:
    pid = served.worker.pid
    before, began = wake_ups(pid), time.monotonic()

    time.sleep(SECONDS)  # the one thing to be seen here is time passing

    woken = {name: count - before[name] for name, count in wake_ups(pid).items()}
    assert woken.pop("corosrv-decode") == 0
    (main,) = woken.values()
    assert main <= time.monotonic() - began + 2  # once a second, and once for the end of the last answer


@pytest.mark.slow
@pytest.mark.model
def test_a_server_with_defaults_takes_little_more_than_what_its_slots_hold(start: Servers) -> None:
    server = start.start(*SERVE, model="")
    with server.connect(timeout=600) as connection:
        assert connection.post(chat("river " * 300, max_tokens=1)).status == 200

    assert server.worker.resident_bytes() + Process(server.pid).resident_bytes() < 450_000_000
