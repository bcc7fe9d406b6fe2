"""The KServe SDK's client over REST, unchanged, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import of_clients, run_in
from tests.serve.server import GUNICORN, Server

PROGRAM = str(Path(__file__).with_name("with_kserve.py"))
OUTPUTS = {"x": [[1.0, 2.0], [3.0, 4.0]], "t": ["a", "grüße"]}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns what came of each step. One run for all: the SDK takes seconds to import."""
    python = of_clients("python")
    folder = tmp_path_factory.mktemp("kserve")
    server = Server((*GUNICORN, "-b", "127.0.0.1:0", "tests.dialects.kserve.served:application"), {}, folder / "log")
    try:
        printed = run_in(folder)(python, PROGRAM, f"http://127.0.0.1:{server.port}")
    finally:
        server.stop()
    outcome: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return outcome


def test_it_finds_the_server_and_its_models(outcome: dict[str, Any]) -> None:
    assert [outcome[name] for name in ("live", "ready", "model", "unready")] == [True, True, True, False]


@pytest.mark.parametrize("way", ["binary", "json"])
def test_it_infers_both_ways(outcome: dict[str, Any], way: str) -> None:
    call_id, model, outputs, parameters = outcome[way]

    assert (call_id, model) == (way, "echo")
    assert outputs == OUTPUTS
    assert parameters == {"flag": True, "n": 3}


def test_halves_come_back_in_binary(outcome: dict[str, Any]) -> None:
    assert outcome["half"] == [1.5, 2.5]


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("unknown", 404, "there is no model 'none'"),
        ("refused", 400, "tensor 'a' is missing"),
        ("unavailable", 503, "is not ready"),
    ],
)
def test_it_reads_our_errors(outcome: dict[str, Any], name: str, status: int, words: str) -> None:
    assert outcome[name][0] == status
    assert words in outcome[name][1]
