"""Requests that are generated from the API's document and grow to 200 kB hold nothing up and fail in no unknown way.

COROSRV_TESTS_REQUESTS says how many for each route: `COROSRV_TESTS_REQUESTS=1000 pytest <this file>` takes minutes.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.hardening import grown
from tests.serve.server import Server, Servers
from tests.support import hub_watch

N_REQUESTS = int(os.environ.get("COROSRV_TESTS_REQUESTS", "50"))
PHASES = (Phase.explicit, Phase.generate)  # the first that fails is told as it is: to shrink it takes minutes


@pytest.fixture(scope="module")
def quick(_kept: Servers) -> Server:
    return _kept.start(model="synthetic:?tokens_per_s=0&length=16", ctx=1024, slots=4)


@pytest.fixture(scope="module")
def document(quick: Server) -> dict[str, Any]:
    described: dict[str, Any] = quick.get("/openapi.json")[1]
    return described


@pytest.mark.parametrize("path", grown.GENERATING)
def test_h028_no_generated_request_holds_the_hub(quick: Server, document: dict[str, Any], path: str) -> None:
    @settings(
        max_examples=N_REQUESTS, deadline=None, database=None, derandomize=N_REQUESTS <= 50, phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        body = data.draw(grown.bodies(document, path))
        with quick.connect(timeout=60) as connection:
            answer = connection.post({**body, "stream": False}, path)
            assert connection.ask("GET", "/health").status == 200

        assert answer.status in (200, 400, 404, 413, 429, 501), answer.body[:500]
        assert hub_watch.findings() == []

    ask()
    assert "Traceback" not in quick.log


@pytest.mark.parametrize(("path", "fields"), [
    ("/completion", {"n_probs": 100}),
    ("/completion", {"n_probs": 100, "response_fields": ["completion_probabilities", "timings/predicted_n"]}),
    ("/v1/completions", {"n_probs": 100, "max_tokens": 1000}),
])  # fmt: skip
def test_h028_many_candidates_do_not_hold_the_hub(quick: Server, path: str, fields: dict[str, Any]) -> None:
    with quick.connect(timeout=60) as connection:
        answer = connection.post({"prompt": ["a"] * 4, "ignore_eos": True, **fields}, path)
        assert connection.ask("GET", "/health").status == 200

    assert len(answer.body) > 10_000_000  # 400,000 candidates
    assert hub_watch.findings() == []
