"""The KServe SDK's client over gRPC, unchanged, in an environment of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import of_clients, run_in
from tests.dialects.kserve.grpc.client import in_thread
from tests.dialects.kserve.grpc.conftest import make_worker, serving
from tests.support.function_worker import FunctionWorker

PROGRAM = str(Path(__file__).with_name("with_kserve.py"))


@pytest.fixture(scope="module")
def sdk_worker() -> FunctionWorker:
    return make_worker()


@pytest.fixture(scope="module")
def outcome(sdk_worker: FunctionWorker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns what came of each step. One run for all: the SDK takes seconds to import."""
    run = run_in(tmp_path_factory.mktemp("kserve"))
    with serving(sdk_worker) as front:
        printed = in_thread(run, of_clients("python"), PROGRAM, str(front.port))
    outcome: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return outcome


def test_it_finds_the_server_and_its_models(outcome: dict[str, Any]) -> None:
    assert [outcome[name] for name in ("live", "ready", "model", "unready")] == [True, True, True, False]


def test_it_infers_raw_and_typed(outcome: dict[str, Any], sdk_worker: FunctionWorker) -> None:
    assert outcome["raw"][:3] == ["raw", "echo", [[1.0, 2.0], [3.0, 4.0]]]
    assert outcome["typed"][:3] == ["typed", "echo", [7, -(2**63)]]
    assert "bool_param: true" in outcome["raw"][3]
    assert sdk_worker.calls[0].request.parameters == {"flag": True, "n": 3}


def test_it_reads_our_codes_and_repeats_nothing_that_may_have_run(
    outcome: dict[str, Any], sdk_worker: FunctionWorker
) -> None:
    assert [outcome[name] for name in ("refused", "full", "lost")] == [
        "INVALID_ARGUMENT",
        "RESOURCE_EXHAUSTED",
        "ABORTED",
    ]
    attempts = [call.request.parameters.get("how") for call in sdk_worker.calls]
    assert [attempts.count(how) for how in ("refused", "full", "lost")] == [1, 1, 1]


def test_it_repeats_what_did_not_run_after_the_pause_that_we_ask_for(
    outcome: dict[str, Any], sdk_worker: FunctionWorker
) -> None:
    code, seconds = outcome["unavailable"]

    n_attempts = [call.request.parameters.get("how") for call in sdk_worker.calls].count("unavailable")
    assert (code, n_attempts) == ("UNAVAILABLE", 3)
    assert seconds >= 2  # one between two attempts, as grpc-retry-pushback-ms says
