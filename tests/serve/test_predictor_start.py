"""A predictor served in every way that there is to start one, and what is refused."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import APP, BIN, GUNICORN, REPOSITORY, SERVE, Process, Server
from tests.support.predictors import PREDICTORS
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

COMMANDS = pytest.mark.parametrize("command", [APP, SERVE], ids=["gunicorn", "serve"])
TASKS = str(PREDICTORS / "tasks.py:Predictor")
FUNCTION = """
def greet(name: str, times: int = 1) -> str:
    return " ".join([f"hello {name}"] * times)
"""


def refusal(*command: str, **environ: str) -> str:
    """Returns the words of a server that does not start."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("COROSRV_", "COG_"))}
    program = [str(BIN / command[0]), *command[1:]]
    ended = subprocess.run(
        program, env=inherited | environ, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode != 0
    return ended.stderr


@COMMANDS
def test_a_class_is_served(start_predictor: StartPredictor, command: tuple[str, ...]) -> None:
    server = start_predictor("tasks.py:Predictor", command=command)

    answer = server.predict({"text": "hi"})

    assert (answer.status, answer.json["output"]) == (200, "hi")
    assert server.health()["setup"]["logs"] == "ready to serve\n"
    assert server.process.health() == "ok"


@COMMANDS
def test_a_server_of_predictions_alone_loads_no_libllama(
    start_predictor: StartPredictor, command: tuple[str, ...]
) -> None:
    server = start_predictor("tasks.py:Predictor", command=command)
    assert server.predict({"text": "hi"}).status == 200

    processes = [Process(server.process.pid), server.process.worker, server.worker]

    files = set().union(*(process.files() for process in processes))
    assert "libpython" in " ".join(files) or any(name.startswith("python") for name in files), "maps are read"
    assert [name for name in files if "llama" in name or "ggml" in name or name.startswith("_native")] == []


@COMMANDS
def test_a_function_is_served(start_predictor: StartPredictor, command: tuple[str, ...]) -> None:
    server = start_predictor(FUNCTION, "greet", command=command)

    answer = server.predict({"name": "you", "times": 2})
    refused = server.predict({})

    assert answer.json["output"] == "hello you hello you"
    assert refused.json["detail"][0]["loc"] == ["body", "input", "name"]


@pytest.mark.parametrize("name", ["tests/predictors/tasks.py:Predictor", "tests.predictors.tasks:Predictor"])
def test_a_predictor_is_found_from_where_the_server_was_started(start_predictor: StartPredictor, name: str) -> None:
    server = start_predictor("tasks.py:Predictor", COROSRV_PREDICTOR=name)

    assert server.predict({"text": "found"}).json["output"] == "found"


def test_more_processes_are_refused_in_words() -> None:
    by_command = refusal(*SERVE, "--predictor", TASKS, "-w", "2")
    by_app = refusal(*GUNICORN, "-b", "127.0.0.1:0", "-w", "2", "corosrv.app", COROSRV_PREDICTOR=TASKS)

    assert "--workers must be 1 with --predictor" in by_command
    assert "predictions run in one process: start gunicorn with one worker (-w 1)" in by_app


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("COG_MAX_CONCURRENCY", "many", "COG_MAX_CONCURRENCY must be of type int, not 'many'"),
        ("COG_MAX_CONCURRENCY", "0", "COROSRV_PREDICTOR_SLOTS must be from 1 to 4096, not 0"),
        ("COG_SETUP_TIMEOUT", "soon", "COG_SETUP_TIMEOUT must be of type float, not 'soon'"),
        ("COROSRV_AWAIT_EXPLICIT_SHUTDOWN", "false", "must be 0 or 1, not 'false'"),
        ("PORT", "http", "PORT must be from 0 to 65535, not 'http'"),
    ],
)
def test_bad_values_stop_the_start_and_are_named(variable: str, value: str, words: str) -> None:
    said = refusal("corosrv", "serve", "--predictor", TASKS, **{variable: value})

    assert words in said
    assert "Traceback" not in said


def test_port_says_where_a_predictor_alone_listens(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", command=("corosrv", "serve"), PORT=0)

    assert server.predict({}).status == 200


def test_cogs_variables_count(start_predictor: StartPredictor, receiver: Receiver) -> None:
    server = start_predictor(
        "async_basics.py:Predictor",
        command=SERVE,
        COG_MAX_CONCURRENCY=3,
        WEBHOOK_AUTH_TOKEN="token",
        COG_SETUP_TIMEOUT=20,
    )

    server.predict({"do": "echo"}, webhook=receiver.url, webhook_events_filter=["completed"])

    assert server.health()["slots"]["total"] == 3
    eventually(lambda: receiver.got, what="a webhook")
    assert receiver.got[0].headers["authorization"] == "Bearer token"


def test_an_option_is_stronger_than_cogs_variable(start_predictor: StartPredictor) -> None:
    server = start_predictor("async_basics.py:Predictor", command=(*SERVE, "--slots", "2"), COG_MAX_CONCURRENCY=3)

    assert server.health()["slots"]["total"] == 2


def test_without_a_predictor_there_is_none_of_this(server: Server) -> None:
    status, _ = server.get("/health-check")

    assert status == 404
