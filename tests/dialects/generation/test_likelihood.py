"""Tokens and how likely they were."""

import math

import msgspec
import pytest

from corosrv.contracts.jobs import Candidate, TokenInfo
from corosrv.dialects.generation import native

HALF = math.log(0.5)
TOKEN = TokenInfo(7, b" Paris", HALF, (Candidate(8, b"\xe5", HALF), Candidate(9, b"", -1000.0)))


def test_logarithms_come_with_the_bytes_of_each_token():
    assert msgspec.to_builtins(native.logprobs(TOKEN)) == {
        "id": 7,
        "token": " Paris",
        "bytes": list(b" Paris"),
        "logprob": HALF,
        "top_logprobs": [
            {"id": 8, "token": "\ufffd", "bytes": [0xE5], "logprob": HALF},
            {"id": 9, "token": "", "bytes": [], "logprob": -1000.0},
        ],
    }


def test_probabilities_leave_out_what_could_not_have_come():
    shown = msgspec.to_builtins(native.probabilities(TOKEN))

    assert shown["prob"] == pytest.approx(0.5)
    assert [(top["id"], top["prob"]) for top in shown["top_probs"]] == [(8, pytest.approx(0.5))]
    assert "logprob" not in shown
