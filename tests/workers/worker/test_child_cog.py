"""Predictors written for Cog run as they are, where the cog package is installed: for these tests, by COG_PYTHON."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corosrv.contracts.jobs.setup import Cancelled, Metric
from tests.support.worker_child import ChildProcess, names

PREDICTOR = Path(__file__).parent.parent.parent / "predictors" / "for_cog.py"
PYTHON = os.environ.get("COG_PYTHON", sys.executable)

pytestmark = pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", "import cog, msgspec"], capture_output=True, check=False).returncode != 0,
    reason="needs the cog package; COG_PYTHON may name an interpreter that has it",
)


def test_a_predictor_of_cogs(tmp_path: Path) -> None:
    with ChildProcess(f"{PREDICTOR}:Predictor", python=PYTHON, cwd=tmp_path, directory=tmp_path) as child:
        ready = child.set_up()
        heard = child.predict(context={"who": "me"}, word="word", times=2, secret="hidden")

    assert child.setup_logs == "cog's own setup\n"
    assert ready.schema["components"]["schemas"]["Input"]["properties"]["times"]["maximum"] == 5
    assert [message for message in heard if isinstance(message, Metric)] == [
        Metric("words", 2),
        Metric("asked.for", "word"),
    ]
    assert heard.logs == "********** {'who': 'me'}\n"
    assert heard.chunks == [{"text": "wordword", "file": None}]
    assert heard[-2].files[0].path == ["file"]
    assert names(heard)[-1] == "Done"


def test_it_hears_of_a_cancel() -> None:
    with ChildProcess(f"{PREDICTOR}:Spins", python=PYTHON) as child:
        child.set_up()
        child.start()
        child.await_log("spinning")

        child.cancel()

        heard = child.hear()
        assert heard.logs == "cancelled\n"
        assert isinstance(heard.end, Cancelled)


def test_a_coder_stands_between_json_and_a_type_of_the_authors() -> None:
    with ChildProcess(f"{PREDICTOR}:Moves", python=PYTHON) as child:
        inputs = child.set_up().schema["components"]["schemas"]["Input"]
        default = inputs["properties"]["start"]["default"]
        heard = child.predict(by={"at": [2, 3]}, start=default, others=[{"at": [0, 0]}])
        broken = child.predict(by={}, start=default, others=None)

    assert {name: schema["type"] for name, schema in inputs["properties"].items()} == {
        "by": "object",
        "start": "object",
        "others": "array",
    }
    assert inputs["required"] == ["by"]
    assert heard.chunks == [[{"at": [3, 4]}, {"at": [2, 3]}]]
    assert broken.end.error == "KeyError: 'at'"


@pytest.mark.parametrize(("name", "input"), [("Streams", {"parts": ["a", "b"]}), ("function", {"word": "a"})])
def test_it_yields(name: str, input: dict[str, object]) -> None:
    with ChildProcess(f"{PREDICTOR}:{name}", python=PYTHON) as child:
        child.set_up()
        heard = child.predict(**input)

    assert heard.chunks == input.get("parts", ["a"])
    assert heard.end.is_stream
