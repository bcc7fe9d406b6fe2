"""Reads from an upstream's description of itself how many calls it runs at once."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from corosrv.fleet.upstreams.spec import MAX_CONCURRENCY

# Where servers tell it: llama-server and corosrv, SGLang, and vLLM where its VLLM_SERVER_DEV_MODE is set.
ROOM_PATHS = ("/props", "/get_server_info", "/server_info?config_format=json")
_IN_WORDS = re.compile(r"\bmax_num_seqs=([0-9]{1,6})\b")


class _State(msgspec.Struct):
    effective_max_running_requests_per_dp: Any = None


class _Description(msgspec.Struct):
    """Holds the members of all these descriptions that tell it."""

    total_slots: Any = None
    max_running_requests: Any = None
    internal_states: list[_State] = []  # of SGLang's workers beside each other
    vllm_config: Any = None  # an object, or its words in older versions


_description = msgspec.json.Decoder(_Description)


def room_of(body: bytes) -> int | None:
    """Returns how many calls a server runs at once, by its answer to one of ROOM_PATHS; None if that does not tell."""
    try:
        told = _description.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    states = [_number(state.effective_max_running_requests_per_dp) for state in told.internal_states]
    together = sum(number for number in states if number) or None
    return _number(told.total_slots) or together or _number(told.max_running_requests) or _of_vllm(told.vllm_config)


def _of_vllm(config: Any) -> int | None:
    if isinstance(config, str):
        found = _IN_WORDS.search(config)
        return _number(int(found[1])) if found else None
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    return _number(scheduler.get("max_num_seqs")) if isinstance(scheduler, dict) else None


def _number(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return min(value, MAX_CONCURRENCY) if is_number else None
