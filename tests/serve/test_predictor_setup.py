"""Predictors that cannot be set up: each says why, in time. The server stays up to tell it; `corosrv serve` ends with
code that cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serve.conftest import StartPredictor
from tests.serve.server import SERVE, START_SECONDS, Servers
from tests.support.waiting import eventually

BAD: dict[str, tuple[str, str]] = {
    "a syntax error": ("class Predictor:\n    def run(self:\n", "SyntaxError"),
    "an exception on import": ("print('importing')\nraise RuntimeError('no weights here')\n", "no weights here"),
    "an import that fails": ("import no_such_module\n", "No module named 'no_such_module'"),
    "no such class": ("class Another:\n    def run(self) -> int: ...\n", "Predictor"),
    "no run": ("class Predictor:\n    def setup(self): ...\n", "run"),
    "run and predict": ("class Predictor:\n    def run(self): ...\n    def predict(self): ...\n", "predict"),
    "sys.exit on import": ("import sys\nsys.exit('I would rather not')\n", "I would rather not"),
    "sys.exit in setup": (
        "import sys\nclass Predictor:\n    def setup(self): sys.exit(3)\n    def run(self) -> int: ...\n",
        "SystemExit",
    ),
    "an exception in setup": (
        "class Predictor:\n    def setup(self): raise ValueError('no weights')\n    def run(self) -> int: ...\n",
        "ValueError: no weights",
    ),
    "a death in setup": (
        "import os\nclass Predictor:\n    def setup(self): os._exit(7)\n    def run(self) -> int: ...\n",
        "exit code 7",
    ),
    "an input without a type": ("class Predictor:\n    def run(self, text) -> int: ...\n", "text"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_predictor_that_cannot_be_set_up_says_why(start_predictor: StartPredictor, fault: str) -> None:
    source, words = BAD[fault]

    server = start_predictor(source, wait_for="SETUP_FAILED")
    health = server.health()
    refused = server.predict({})

    assert health["setup"]["status"] == "failed"
    assert words in health["setup"]["logs"]
    assert health["setup"]["completed_at"] >= health["setup"]["started_at"]
    assert refused.status == 503
    assert "setup failed" in refused.json["error"]
    assert server.ask("GET", "/openapi.json").status == 503
    assert server.process.health() == "failed"
    eventually(lambda: not server.process.worker.children(), what="the worker's end")


def test_a_missing_file_is_named(start_predictor: StartPredictor) -> None:
    server = start_predictor("/nowhere/predict.py:Predictor", wait_for="SETUP_FAILED")

    assert "/nowhere/predict.py" in server.health()["setup"]["logs"]
    assert "/nowhere/predict.py" in server.predict({}).json["error"]


def test_a_set_up_that_hangs_has_its_time(start_predictor: StartPredictor) -> None:
    server = start_predictor(
        "patient.py:SlowToSetUp", wait_for="SETUP_FAILED", command=(*SERVE, "--setup-timeout", "1")
    )

    assert "timed out after 1 s" in server.health()["setup"]["logs"]
    assert "timed out" in server.predict({}).json["error"]
    eventually(lambda: not server.process.worker.children(), what="the worker's end")


def test_slots_need_an_async_predictor(start_predictor: StartPredictor) -> None:
    server = start_predictor("tasks.py:Predictor", wait_for="SETUP_FAILED", slots=2)

    assert "async" in server.health()["setup"]["logs"]


@pytest.mark.parametrize(
    "fault", ["a syntax error", "an exception on import", "an import that fails", "no such class", "sys.exit on import"]
)
def test_serve_ends_at_once_with_the_words_of_code_that_cannot_be_loaded(
    start: Servers, tmp_path: Path, fault: str
) -> None:
    source, words = BAD[fault]
    (tmp_path / "predict.py").write_text(source)

    server = start.start(*SERVE, "--predictor", f"{tmp_path}/predict.py:Predictor", wait_for=None, model="")

    assert server.wait(START_SECONDS) == 1
    assert words in server.log.partition("corosrv cannot start: the predictor could not be loaded:")[2]
    assert server.log.count("Booting worker") == 1


def test_serve_stays_up_to_tell_of_a_setup_that_fails(start_predictor: StartPredictor) -> None:
    source, words = BAD["an exception in setup"]

    server = start_predictor(source, wait_for="SETUP_FAILED", command=SERVE)

    assert words in server.health()["setup"]["logs"]
