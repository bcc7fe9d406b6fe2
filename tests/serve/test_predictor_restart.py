"""--restart-worker: a worker that died is followed by another, and nothing is told twice."""

from __future__ import annotations

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import SERVE
from tests.support.predictors import ASYNC, PredictorServer
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

RESTARTING = (*SERVE, "--restart-worker")
NEVER_SET_UP = """
class Predictor:
    def setup(self):
        raise RuntimeError("not today")

    def predict(self) -> str:
        return ""
"""
# Is set up once, and never again.
ONCE = """
import os
import sys


class Predictor:
    def setup(self):
        mark = os.path.join(os.environ["TMPDIR"], "was set up")
        if os.path.exists(mark):
            sys.exit("not again")
        open(mark, "w").close()

    def run(self) -> int:
        os._exit(1)
"""


def is_back(server: PredictorServer) -> None:
    eventually(lambda: server.health()["status"] == "READY", what="another worker is set up")


def test_a_killed_worker_comes_back(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", command=RESTARTING)
    first = server.worker

    first.kill()
    eventually(lambda: server.predict({}).status == 503, what="its end is noticed")
    is_back(server)

    assert server.worker.pid != first.pid
    assert server.predict({"text": "again"}).json["output"] == "again"
    assert server.process.metric("predictor_restarts_total") == 1
    assert server.process.metric('predictor_state{state="ready"}') == 1
    assert server.process.health() == "ok"


def test_what_ran_fails_once_and_is_not_run_again(start_predictor: StartPredictor, receiver: Receiver) -> None:
    server = start_predictor("tasks.py:Predictor", command=RESTARTING)
    server.put("p", {"gate": str(server.gate("never"))}, ASYNC, webhook=receiver.url)
    eventually(lambda: receiver.statuses == ["processing"])

    server.worker.kill()
    failed = server.wait_for("p", "failed")
    is_back(server)

    assert "crash" in failed["error"]
    assert server.get("p").json == failed
    assert receiver.statuses == ["processing", "failed"]
    assert server.process.metric('predictions_total{status="failed"}') == 1
    assert server.health()["slots"] == {"total": 1, "busy": 0, "poisoned": 0}
    assert server.predict({"text": "runs"}).json["metrics"]["runs"] == {"total": 1}  # the first of another life


def test_without_it_the_end_is_final(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", command=SERVE)

    assert server.predict({"exits": 3}).json["status"] == "failed"

    eventually(lambda: server.health()["status"] == "DEFUNCT", what="its end is noticed")
    assert "started again" not in server.process.log
    assert server.process.metric("predictor_restarts_total") == 0


def test_a_first_set_up_that_fails_is_not_tried_again(start_predictor: StartPredictor) -> None:
    server = start_predictor(NEVER_SET_UP, wait_for="SETUP_FAILED", command=RESTARTING)

    assert "started again" not in server.process.log


def test_a_worker_that_is_not_set_up_again_is_tried_later_each_time(start_predictor: StartPredictor) -> None:
    server = start_predictor(ONCE, command=RESTARTING)

    server.predict({})
    eventually(lambda: "started again in 2 s" in server.process.log, what="the second pause is longer")

    failed = eventually(lambda: health if (health := server.health())["status"] == "SETUP_FAILED" else None)
    assert "not again" in failed["setup"]["logs"]
    assert server.predict({}).status == 503


def test_a_server_that_ends_while_it_pauses_ends_at_once(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", command=RESTARTING)
    server.worker.kill()
    eventually(lambda: "started again in 1 s" in server.process.log)

    server.ask("POST", "/shutdown")

    assert server.process.wait() == 0


@pytest.mark.parametrize("signal_name", ["SIGSEGV", "SIGABRT"])
def test_signals_are_named(start_predictor: StartPredictor, signal_name: str) -> None:
    source = f"""
import os
import signal


def run() -> int:
    os.kill(os.getpid(), signal.{signal_name})
    signal.pause()
"""
    server = start_predictor(source, "run", command=SERVE)

    failed = server.predict({}).json

    assert failed["status"] == "failed"
    assert signal_name in failed["error"]
