"""The end of a server with an application: running calls may end, new ones are refused, and no process is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.serve.server import SERVE, Process, Server, Servers
from tests.serve.wire import Connection, request
from tests.support.waiting import eventually

WAITS = """
import time
from pathlib import Path

from corosrv.worker import App, Worker

app = App("waits")
folder = Path(__file__).parent


@app.worker(models=["wait"])
class Wait(Worker):
    def on_stop(self):
        (folder / "stopped").touch()

    def handle(self, request):
        (folder / "began").touch()
        while not (folder / "gate").exists():
            time.sleep(0.02)
        return {}
"""
CALL = request("POST", "/v2/models/wait/infer", {"inputs": []})


class WaitingServer:
    """A server whose handler waits until `gate` exists, and whose only call has begun to."""

    def __init__(self, start: Servers, folder: Path) -> None:
        self.folder = folder
        (folder / "waits.py").write_text(WAITS)
        run_dir = ("--run-dir", str(folder / "run"))
        self.server: Server = start.start(*SERVE, f"{folder}/waits.py:app", *run_dir, model="")
        (pid,) = self.server.worker.children_of("corosrv.workers.worker.app")
        self.worker = Process(pid)
        self.call: Connection = self.server.connect()
        self.call.send(CALL)
        eventually((folder / "began").exists, what="the call has begun")

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    @property
    def has_stopped(self) -> bool:
        return (self.folder / "stopped").exists()

    def terminate(self) -> None:
        self.server.signal(signal.SIGTERM)

    def check_gone(self) -> None:
        eventually(lambda: not self.worker.is_alive, what="the end of the worker")


@pytest.fixture
def waiting(start: Servers, tmp_path: Path) -> WaitingServer:
    return WaitingServer(start, tmp_path)


def test_a_running_call_ends_well_and_new_ones_are_refused(waiting: WaitingServer) -> None:
    with waiting.call as running, waiting.server.connect() as late:
        late.send(CALL[:-5])  # taken before the signal, complete only after it
        waiting.terminate()
        eventually(lambda: waiting.server.health() in ("draining", ""), what="the signal has come through")
        late.send(CALL[-5:])
        refused = late.answer()

        waiting.open_gate()

        assert (refused.status, refused.headers["connection"]) == (503, "close")
        assert running.answer().status == 200
    assert waiting.server.wait() == 0
    assert waiting.has_stopped
    waiting.check_gone()
    assert list((waiting.folder / "run").glob("*")) == []


def test_a_second_signal_does_not_wait_for_the_call(waiting: WaitingServer) -> None:
    with waiting.call as running:
        waiting.terminate()
        eventually(lambda: waiting.server.health() in ("draining", ""), what="the signal has come through")

        waiting.terminate()

        answer = running.answer()
        assert (answer.status, "may have run" in answer.json["error"]) == (502, True)
    assert waiting.server.wait() == 0
    assert waiting.has_stopped
    waiting.check_gone()


def test_a_worker_ends_with_its_killed_server_while_a_call_runs(waiting: WaitingServer) -> None:
    with waiting.call:
        waiting.server.stop()  # SIGKILL to all of it; the worker is in a session of its own

        waiting.check_gone()
    assert not waiting.has_stopped
