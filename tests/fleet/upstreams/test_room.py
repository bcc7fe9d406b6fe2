"""How many calls an upstream says that it runs at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corosrv.fleet.upstreams.prober import room_of
from corosrv.fleet.upstreams.spec import MAX_CONCURRENCY


@pytest.mark.parametrize(
    ("description", "n_calls"),
    [
        ({"total_slots": 4, "default_generation_settings": {"n_ctx": 4096}}, 4),
        ({"max_running_requests": 64, "model_path": "m"}, 64),
        ({"max_running_requests": None, "internal_states": [{"effective_max_running_requests_per_dp": 48}]}, 48),
        ({"max_running_requests": 64, "internal_states": [{"effective_max_running_requests_per_dp": 48}] * 2}, 96),
        ({"max_running_requests": 64, "internal_states": [{"last_gen_throughput": 1.5}]}, 64),
        ({"vllm_config": {"scheduler_config": {"max_num_seqs": 128}}}, 128),
        ({"vllm_config": "model='m', scheduler_config=SchedulerConfig(max_num_seqs=256, x=1)"}, 256),
        ({"total_slots": 10**9}, MAX_CONCURRENCY),
        ({}, None),
        ({"total_slots": 0}, None),
        ({"total_slots": -1}, None),
        ({"total_slots": True}, None),
        ({"total_slots": "4"}, None),
        ({"total_slots": 1.5}, None),
        ({"vllm_config": {"scheduler_config": None}}, None),
        ({"vllm_config": "max_num_seqs_of_nobody=4"}, None),
        ({"internal_states": "none"}, None),
        ([4], None),
    ],
)
def test_servers_tell_it_in_their_own_words(description: Any, n_calls: int | None):
    assert room_of(json.dumps(description).encode()) == n_calls


def test_what_is_no_json_tells_nothing():
    assert room_of(b"<html>") is None
    assert room_of(b"\xff") is None
