"""The end of a server with a predictor: what runs may finish and be told of, and no process is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import APP, GUNICORN, REPOSITORY, SERVE, Process
from tests.support.predictors import ASYNC, PredictorServer
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

COMMANDS = pytest.mark.parametrize("command", [APP, SERVE], ids=["gunicorn", "serve"])
# gunicorn's master drops a second SIGTERM unless it is told what to do with it.
CONFIGURED = (*GUNICORN[:1], "-c", str(REPOSITORY / "deploy" / "gunicorn.conf.py"), "-b", "127.0.0.1:0", "corosrv.app")
SHUT_DOWN = "ShuttingDown: server shut down"


def by_signal(number: int) -> Callable[[PredictorServer], None]:
    return lambda server: server.process.signal(number)


def by_request(server: PredictorServer) -> None:
    assert server.ask("POST", "/shutdown").json == {}


STOPS = pytest.mark.parametrize(
    "stop", [by_signal(signal.SIGTERM), by_signal(signal.SIGINT), by_request], ids=["SIGTERM", "SIGINT", "request"]
)


def run(server: PredictorServer, receiver: Receiver, gate: object, **input: object) -> None:
    """A prediction that nobody waits for, which its receiver has heard begin."""
    events = ["start", "completed"]  # no others, which would come in between
    server.put("p", {"gate": str(gate), **input}, ASYNC, webhook=receiver.url, webhook_events_filter=events)
    eventually(lambda: "processing" in receiver.statuses and receiver.n_answered, what="it runs")


def check_gone(server: PredictorServer, worker: Process) -> None:
    """The server ends well, and its worker with it."""
    assert server.process.wait() == 0
    eventually(lambda: not worker.is_alive, what="the worker's end")
    assert "Traceback" not in server.process.log, server.process.log


@COMMANDS
@STOPS
def test_an_idle_server_ends_at_once(
    start_predictor: StartPredictor, stop: Callable[[PredictorServer], None], command: tuple[str, ...]
) -> None:
    server = start_predictor("patient.py:Predictor", command=command)
    worker = server.worker

    stop(server)

    check_gone(server, worker)


@STOPS
def test_what_runs_finishes_and_is_told_of_before_the_end(
    start_predictor: StartPredictor, receiver: Receiver, stop: Callable[[PredictorServer], None]
) -> None:
    server = start_predictor("patient.py:AsyncPredictor", command=SERVE)
    worker, gate = server.worker, server.gate("shut")
    run(server, receiver, gate)

    with server.connect() as open_connection:
        stop(server)
        eventually(lambda: server.process.health() in ("draining", ""), what="the stop has come through")
        refused = open_connection.ask("POST", "/predictions")
        assert server.process.is_running
        gate.open()

    assert refused.status == 503
    assert "shutting down" in refused.json["error"]
    check_gone(server, worker)
    assert receiver.statuses[-1] == "succeeded"
    assert receiver.got[-1].body["output"] == "done"


def test_who_waits_for_the_result_gets_it(start_predictor: StartPredictor) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE)
    gate = server.gate("shut")
    with server.begin({"gate": str(gate)}) as connection:
        eventually(lambda: server.health()["status"] == "BUSY")

        server.process.signal(signal.SIGTERM)
        gate.open()

        assert connection.answer().json["output"] == "done"
    assert server.process.wait() == 0


def test_a_last_webhook_that_has_to_be_repeated_is_waited_for(
    start_predictor: StartPredictor, receiver: Receiver
) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE)
    gate = server.gate("shut")
    run(server, receiver, gate)
    receiver.say(503)
    receiver.say(503)

    server.process.signal(signal.SIGTERM)
    gate.open()

    assert server.process.wait() == 0
    assert receiver.statuses[-3:] == ["succeeded"] * 3


@pytest.mark.parametrize(
    ("command", "number"),
    [(SERVE, signal.SIGTERM), (SERVE, signal.SIGINT), (CONFIGURED, signal.SIGTERM), (APP, signal.SIGINT)],
    ids=["serve-SIGTERM", "serve-SIGINT", "configured-SIGTERM", "gunicorn-SIGINT"],
)
def test_a_second_signal_fails_what_runs(
    start_predictor: StartPredictor, receiver: Receiver, number: int, command: tuple[str, ...]
) -> None:
    server = start_predictor("patient.py:Predictor", command=command)
    worker = server.worker
    run(server, receiver, server.gate("never"), stubborn=True)

    server.process.signal(signal.SIGTERM)
    eventually(lambda: server.process.health() in ("draining", ""), what="the stop has come through")
    server.process.signal(number)

    check_gone(server, worker)
    assert receiver.statuses[-1] == "failed"
    assert receiver.got[-1].body["error"] == SHUT_DOWN
    assert receiver.got[-1].body["logs"] == "waiting\n"


def test_two_signals_at_once_do_not_go_on_waiting(start_predictor: StartPredictor, receiver: Receiver) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE)
    worker = server.worker
    run(server, receiver, server.gate("never"))

    server.process.signal(signal.SIGINT)
    server.process.signal(signal.SIGTERM)

    check_gone(server, worker)
    assert receiver.statuses[-1] == "failed"


def test_what_takes_longer_than_the_drain_time_is_failed(start_predictor: StartPredictor, receiver: Receiver) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE, drain_timeout=0.5)
    worker = server.worker
    run(server, receiver, server.gate("never"), stubborn=True)
    began = time.monotonic()

    server.process.signal(signal.SIGTERM)

    check_gone(server, worker)
    assert time.monotonic() - began >= 0.5
    assert receiver.got[-1].body["error"] == SHUT_DOWN


def test_a_dead_receiver_does_not_keep_the_server_beyond_the_drain_time(
    start_predictor: StartPredictor, receiver: Receiver
) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE, drain_timeout=0.5)
    worker, gate = server.worker, server.gate("shut")
    run(server, receiver, gate)
    receiver.hold()

    server.process.signal(signal.SIGTERM)
    gate.open()

    check_gone(server, worker)


def test_only_an_explicit_shutdown_counts_where_that_is_wanted(start_predictor: StartPredictor) -> None:
    server = start_predictor("patient.py:Predictor", command=(*SERVE, "--await-explicit-shutdown"))
    worker, gate = server.worker, server.gate("shut")
    server.put("p", {"gate": str(gate)}, ASYNC)

    server.process.signal(signal.SIGTERM)
    gate.open()
    server.wait_for("p", "succeeded")
    assert server.predict({"gate": str(gate)}).status == 200
    by_request(server)

    check_gone(server, worker)


def test_an_interrupt_counts_also_where_sigterm_does_not(start_predictor: StartPredictor) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE, await_explicit_shutdown=1)
    worker = server.worker

    server.process.signal(signal.SIGINT)

    check_gone(server, worker)


@STOPS
def test_a_stop_during_the_set_up_stops_the_worker(
    start_predictor: StartPredictor, stop: Callable[[PredictorServer], None]
) -> None:
    server = start_predictor("patient.py:SlowToSetUp", wait_for="STARTING", command=SERVE)
    worker = server.worker
    assert "being set up" in server.predict({"gate": ""}).json["error"]

    stop(server)

    check_gone(server, worker)


@pytest.mark.parametrize("moment", ["set-up", "idle", "prediction"])
def test_a_killed_server_takes_its_worker_along(start_predictor: StartPredictor, moment: str) -> None:
    name = "SlowToSetUp" if moment == "set-up" else "Predictor"
    server = start_predictor(f"patient.py:{name}", wait_for="STARTING" if moment == "set-up" else "READY")
    worker = server.worker
    if moment == "prediction":
        server.put("p", {"gate": str(server.gate("never")), "stubborn": True}, ASYNC)
        server.wait_for("p", "processing")

    server.stop()  # SIGKILL to all of it; the worker is in a session of its own

    eventually(lambda: not worker.is_alive, what="the worker's end")


def test_a_killed_worker_is_told_at_once(start_predictor: StartPredictor) -> None:
    server = start_predictor("patient.py:Predictor", command=SERVE)

    server.worker.kill()
    eventually(lambda: server.health()["status"] == "DEFUNCT", what="its end is noticed, idle as it was")
    refused = server.predict({"gate": ""})

    assert refused.status == 503
    assert "gone" in refused.json["error"]
    assert server.process.metric('predictor_state{state="defunct"}') == 1
    assert server.process.health() == "failed"


def test_a_worker_that_is_killed_fails_what_runs(start_predictor: StartPredictor) -> None:
    server = start_predictor("patient.py:AsyncPredictor", command=SERVE)
    gate = str(server.gate("never"))
    server.put("a", {"gate": gate}, ASYNC)
    with server.begin({"gate": gate}) as waiting:
        eventually(lambda: server.health()["slots"]["busy"] == 2)
        server.wait_for("a", "processing")

        server.worker.kill()
        answer = waiting.answer().json

    for ended in (answer, server.wait_for("a", "failed")):
        assert ended["status"] == "failed"
        assert "crash" in ended["error"]
        assert "SIGKILL" in ended["error"]
    assert server.process.metric('predictions_total{status="failed"}') == 2
